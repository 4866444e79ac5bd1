"""The cost of recording, merging and viewing a timeline."""
