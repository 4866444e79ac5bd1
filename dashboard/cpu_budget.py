"""The beat of pages of running jobs: how often they poll and redraw, so that watching a job does not slow it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.routes import Route

REDRAW_MS = 6000
"""Figures of a running job are redrawn at most this often."""
DRAWING_COST_FACTOR = 2000
"""Redraws also wait for this many times the CPU time that drawing took: a page may cost well below 1 % of a core."""
POLL_MS = 2000
"""A page shows what happened within the last seconds."""


class CpuBudget:
    """Measures what redraws cost, and sets their intervals. Safe to use from several threads."""

    def __init__(self) -> None:
        self._drawing_s: dict[tuple[str, str], float] = {}
        self._look = threading.local()
        self._lock = threading.Lock()

    @property
    def known(self) -> dict[str, RunInfo | None] | None:
        """The runs that this thread's poll has looked at so far; None outside of a poll."""
        found: dict[str, RunInfo | None] | None = getattr(self._look, "runs", None)
        return found

    @contextlib.contextmanager
    def poll(self) -> Iterator[None]:
        """Answer one poll, which looks at every run at most once (`known`)."""
        self._look.runs = {}
        try:
            yield
        finally:
            self._look.runs = None

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
