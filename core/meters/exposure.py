"""Exposed communication of a running job: of every step what its least blocked rank was blocked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

KEPT = 4096
"""Newest steps of a rank that are remembered: more than a training ends between two looks."""


class Blocked:
    """How long callers were blocked in each of a rank's newest steps. One thread adds; others may read."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, int]] = deque(maxlen=KEPT)

    def add(self, step: int, blocked_ns: int) -> None:
        """Take the step that has ended."""
        self._newest.append((step, blocked_ns))

    def since(self, step: int) -> list[tuple[int, int]]:
        """Return number and blocked time (ns) of the steps from this one on."""
        return [one for one in tuple(self._newest) if one[0] >= step]


class Exposed:
    """The sum over steps that all ranks have ended and told of; one that is told of too late is left out.

    Attributes:
        total_ns: The sum.
        next_step: The first step that it does not hold yet.
    """

    def __init__(self) -> None:
        self.total_ns = 0
        self.next_step = 0

    def add(self, ranks: Sequence[Sequence[Sequence[int]]]) -> None:
        """Take what every rank tells: number and blocked time of its newest steps, some of which were told before."""
        known = [{step: blocked_ns for step, blocked_ns in told} for told in ranks]
        for step in sorted(set(known[0]).intersection(*known[1:])):
            if step >= self.next_step:
                self.total_ns += min(one[step] for one in known)
                self.next_step = step + 1
