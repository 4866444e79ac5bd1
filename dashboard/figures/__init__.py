"""Figures: pure functions from a table to a plotly figure. They draw and decide nothing."""
