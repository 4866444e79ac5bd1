"""Horovod's modules that have no twin of the same name in ringtune; see `ringtune.as_horovod`."""
