"""Races of single collectives and of a step's gradients, and what the control plane and the hooks cost."""
