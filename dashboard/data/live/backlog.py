"""Reading what a live timeline left out, beside the job and at a bounded cost, as long as somebody looks at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

SHARE = 0.004
"""Of one core: reading goes on when all that this process does has cost no more than this since the last piece."""
LEAST_SHARE = 0.0005
"""Where pages alone cost that much, reading takes this."""
PIECE_BYTES = 1 << 18
"""Read in one go: some ten milliseconds, for which pages may have to wait."""
LOOKED_AT_S = 10.0
"""Nobody looks any more who has not asked for so long."""


@dataclass(frozen=True)
class Reading:
    """How far it is: what share of the timeline is read, and whether that goes on without rests."""

    share: float
    hurrying: bool = False


class PastReader:
    """Calls a function again and again on a thread of its own, with rests between, until it has nothing more to do.

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
        """Whether it reads without rests."""
        return self._hurry.is_set()

    def looked_at(self) -> None:
        """Say that somebody looks; starts the reading, or lets it go on. Not to be called by two threads at once."""
        self._asked = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, daemon=True, name="ringtune-past")
            self._thread.start()

    def hurry(self) -> None:
        """Read without rests from now on, whatever it costs."""
        self._hurry.set()

    def _run(self) -> None:
        since, used = time.monotonic(), time.process_time()
        while time.monotonic() - self._asked < LOOKED_AT_S or self.hurrying:
            begin = time.thread_time()
            if not self._piece():
                self._hurry.clear()  # what is left out later is read with rests again
                return
            self._rest(since, used, time.thread_time() - begin)
            since, used = time.monotonic(), time.process_time()

    def _rest(self, since: float, used: float, cost: float) -> None:
        """Wait until what the process used since a moment is no more than its share of the time."""
        longest = time.monotonic() + cost / LEAST_SHARE
        while time.monotonic() < longest:
            due = since + (time.process_time() - used) / SHARE
            left = min(due, longest) - time.monotonic()
            if left <= 0 or self._hurry.wait(min(left, 1.0)):
                return
