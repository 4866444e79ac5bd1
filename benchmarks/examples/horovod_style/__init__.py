"""Training scripts in Horovod's style: untouched under ``ringtune run --as-horovod``, or with their import changed."""
