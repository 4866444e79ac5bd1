"""Scaling and micro benchmarks of ringtune, run by ``ringtune bench``."""
