"""What the benchmarks share: jobs that take turns, peers, statistics, requirements, progress."""
