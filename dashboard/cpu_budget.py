"""The CPU budget of pages of running jobs: how often they poll and redraw, so that watching a job does not slow it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.routes import Route

REDRAW_MS = 6000
"""Figures of a running job are redrawn at most this often."""
DRAWING_COST_FACTOR = 2000
"""Redraws also wait for this many times the CPU time that drawing took: a page may cost well below 1 % of a core."""
POLL_SHARE = 0.007
"""The share of a core that the polls of a view may take in the long run, also where a job has many ranks."""
BURST_S = 0.03
"""CPU time that a view may take beyond that share for a while."""
SHORTEST_INTERVAL_MS, LONGEST_INTERVAL_MS = 650, 850
"""Bounds of the poll interval: a page shows what happened within the last second."""
TARGET_SHARE = 0.0085
"""Between the bounds, the poll interval is chosen so that a view takes this share of a core."""
REQUEST_COST_S = 0.0018
"""The cost of a poll that is not measured: the path of its request through the server."""
EXPENSIVE_EVERY_S = 60.0
"""Once in this time an expensive poll is charged only `BURST_S`: the first one reads all, others move whole lanes."""
_MOST_VIEWS = 256
_FORGET = 0.1
"""The weight of the last poll in the moving average of the cost of a poll."""
_STEP_MS = 50


@dataclass(frozen=True)
class _Spent:
    """Of a view: the times of its last poll and its last expensive one, the CPU time overdrawn at the last poll, and
    the moving average of the cost of a poll.
    """

    at_s: float
    expensive_s: float
    left_s: float
    usual_s: float


class CpuBudget:
    """Measures what polls and redraws cost, and sets their intervals. Safe to use from several threads."""

    def __init__(self) -> None:
        self._spent: dict[Hashable, _Spent] = {}
        self._drawing_s: dict[tuple[str, str], float] = {}
        self._look = threading.local()
        self._lock = threading.Lock()

    @property
    def known(self) -> dict[str, RunInfo | None] | None:
        """The runs that this thread's poll has looked at so far; None outside of a poll."""
        found: dict[str, RunInfo | None] | None = getattr(self._look, "runs", None)
        return found

    @contextlib.contextmanager
    def unmetered(self) -> Iterator[None]:
        """Leave work out of the poll's cost because it is throttled on its own."""
        begin = time.thread_time()
        try:
            yield
        finally:
            self._look.unmetered_s = getattr(self._look, "unmetered_s", 0.0) + time.thread_time() - begin

    @contextlib.contextmanager
    def poll(self, view: Hashable) -> Iterator[None]:
        """Measure one poll of a view of a page; it looks at every run at most once (`known`)."""
        begin, self._look.runs, self._look.unmetered_s = time.thread_time(), {}, 0.0
        try:
            yield
        finally:
            self._look.runs = None
            took = time.thread_time() - begin - self._look.unmetered_s
            with self._lock:
                now = time.monotonic()
                left, before = self._left(view, now), self._spent.pop(view, None)
                expensive_s, usual_s = (before.expensive_s, before.usual_s) if before else (-math.inf, 0.0)
                if before is not None:  # the first poll reads everything
                    usual_s = usual_s + _FORGET * (min(took, 2 * usual_s) - usual_s) if usual_s else min(took, BURST_S)
                if took > BURST_S and now > expensive_s + EXPENSIVE_EVERY_S:
                    took, expensive_s = BURST_S, now
                while len(self._spent) >= _MOST_VIEWS:
                    self._spent.pop(next(iter(self._spent)))
                self._spent[view] = _Spent(now, expensive_s, left + took, usual_s)

    def throttled(self, view: Hashable) -> bool:
        """Whether a view has overdrawn its budget, so that its next poll has to wait."""
        with self._lock:
            return self._left(view, time.monotonic()) > BURST_S

    def poll_interval_ms(self, view: Hashable) -> int:
        """Return the milliseconds until a page polls a view again, in steps so that its timer is rarely reset."""
        with self._lock:
            spent = self._spent.get(view)
        usual_s = spent.usual_s if spent else 0.0
        least_ms = 1000 * (usual_s + REQUEST_COST_S) / TARGET_SHARE
        return min(max(_STEP_MS * math.ceil(least_ms / _STEP_MS), SHORTEST_INTERVAL_MS), LONGEST_INTERVAL_MS)

    def _left(self, view: Hashable, now: float) -> float:
        """Seconds of CPU time that the polls of a view took beyond their share."""
        spent = self._spent.get(view)
        return max(0.0, spent.left_s - POLL_SHARE * (now - spent.at_s)) if spent else 0.0

    @contextlib.contextmanager
    def drawing(self, route: Route) -> Iterator[None]:
        """Measure what drawing a page's figures costs; `redraw_interval_ms` depends on it."""
        begin = time.thread_time()
        yield
        with self._lock:
            self._drawing_s[route.page, route.run] = time.thread_time() - begin

    def redraw_interval_ms(self, route: Route, run: RunInfo | None) -> int:
        """Return the milliseconds until a page redraws its figures; 0 where nothing runs."""
        if run is not None and run.status != "live":
            return 0
        with self._lock:
            took = self._drawing_s.get((route.page, route.run), 0.0)
        return max(REDRAW_MS, round(1000 * DRAWING_COST_FACTOR * took))
