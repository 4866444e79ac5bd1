"""Run folders: reading what a job left behind, and collecting the parts of remote hosts."""
