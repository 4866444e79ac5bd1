"""The timeline of a run as lanes and shapes to draw, and what lies over them."""
