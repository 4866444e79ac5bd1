"""Real training: models, ways to train them, rates beside peers, scaling efficiency."""
