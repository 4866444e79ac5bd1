"""Predictions of `ringtune predict` beside measured jobs."""
