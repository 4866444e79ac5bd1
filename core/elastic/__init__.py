"""Elastic jobs, in which ranks come and go: keys of the store, a worker's side. See also `ringtune.launch.elastic`."""
