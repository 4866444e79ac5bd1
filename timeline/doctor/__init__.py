"""The whole story of a run on one page: `ringtune timeline doctor`."""
