"""How long the steps of a rank took: a histogram with fixed bounds."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_NS = tuple(digit * 10**power for power in range(6, 12) for digit in (1, 2, 5) if digit * 10**power <= 10**11)
"""Upper bounds of the buckets, 1 ms to 100 s in nanoseconds; one more bucket holds what is longer."""


class Durations:
    """Counts of steps by duration. One thread adds; others may read, a step late at worst."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count a step."""
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns
