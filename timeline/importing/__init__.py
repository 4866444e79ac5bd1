"""Importing: recordings of other tools, a file a rank, become a run folder."""
