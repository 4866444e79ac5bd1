"""Running jobs: timelines and analyses that grow with their files, so that each row is read once."""
