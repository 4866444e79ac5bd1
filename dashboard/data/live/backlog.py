"""The backlog of a live timeline: skipped parts are read at a bounded cost while a page shows the timeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

SHARE = 0.004
"""The share of one core: reading goes on when the whole process has used no more than this since the last piece."""
LEAST_SHARE = 0.0005
"""The share that reading takes where pages alone cost that much."""
PIECE_BYTES = 1 << 18
"""Bytes of one piece: about ten milliseconds, for which pages may have to wait."""
LOOKED_AT_S = 10.0
"""A timeline that no page has requested for this time is not shown any more."""


@dataclass(frozen=True)
class Reading:
    """Progress: the share of the timeline that is read, and whether reading is unthrottled."""

    share: float
    hurrying: bool = False


class BacklogReader:
    """Calls a function repeatedly on its own thread, throttled, until nothing is left to read.

    Args:
        piece: Reads some; returns whether there is more, and does its own locking.
    """

    def __init__(self, piece: Callable[[], bool]) -> None:
        self._piece = piece
        self._thread: threading.Thread | None = None
        self._asked = 0.0
        self._hurry = threading.Event()

    @property
    def hurrying(self) -> bool:
        """Whether reading is unthrottled."""
        return self._hurry.is_set()

    def looked_at(self) -> None:
        """Note that a page shows the timeline, and start or continue reading. Not safe for two threads at once."""
        self._asked = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, daemon=True, name="ringtune-past")
            self._thread.start()

    def hurry(self) -> None:
        """Read unthrottled from now on, whatever it costs."""
        self._hurry.set()

    def _run(self) -> None:
        since, used = time.monotonic(), time.process_time()
        while time.monotonic() - self._asked < LOOKED_AT_S or self.hurrying:
            begin = time.thread_time()
            if not self._piece():
                self._hurry.clear()  # a later backlog is throttled again
                return
            self._rest(since, used, time.thread_time() - begin)
            since, used = time.monotonic(), time.process_time()

    def _rest(self, since: float, used: float, cost: float) -> None:
        """Wait until the CPU time of the process since a moment is within its share."""
        longest = time.monotonic() + cost / LEAST_SHARE
        while time.monotonic() < longest:
            due = since + (time.process_time() - used) / SHARE
            left = min(due, longest) - time.monotonic()
            if left <= 0 or self._hurry.wait(min(left, 1.0)):
                return
