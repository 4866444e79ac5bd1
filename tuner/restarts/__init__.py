"""`ringtune tune --restarts`: settings that a job can only take at its start, one short run a trial."""
