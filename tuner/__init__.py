"""Finds fusion buffer size and cycle time for a running job, and keeps only what a fresh comparison confirms.

`online` is the pure decision machine, `advisor` the process that suggests settings, `extension` joins both to a
training session, `cli` is ``ringtune tune``. Nothing is imported here: a training rank pays for what it uses.
"""
