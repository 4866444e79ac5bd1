"""What a rank measures of itself while it trains: step log, samples of its machine, metrics."""
