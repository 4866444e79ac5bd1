"""Deadlines: every wait at start-up is bounded by one and stays interruptible."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Deadline:
    """A moment on the monotonic clock.

    Attributes:
        at_ns: The moment, in nanoseconds.
    """

    at_ns: int

    @classmethod
    def after_ns(cls, duration_ns: int) -> Deadline:
        """Return the deadline so many nanoseconds from now."""
        return cls(time.monotonic_ns() + duration_ns)

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return time.monotonic_ns() >= self.at_ns

    @property
    def left_ns(self) -> int:
        """Nanoseconds that remain, 0 when none."""
        return max(0, self.at_ns - time.monotonic_ns())

    @property
    def left(self) -> timedelta:
        """What remains as a `timedelta`, at least a millisecond (torch refuses less)."""
        return timedelta(microseconds=max(1000, self.left_ns // 1000))

    def pause(self, seconds: float) -> None:
        """Sleep, but not past the deadline."""
        time.sleep(min(seconds, self.left_ns / 1e9))
