"""Merging the parts of all ranks: clocks, the joined trace, and the merged file."""
