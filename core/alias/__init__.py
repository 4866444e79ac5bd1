"""What makes ringtune pass as Horovod: the import hook, its modules without a twin here, its variables."""
