"""Cached state of running jobs: growing timelines, their analyses, and results that are expensive to compute.

One reading of a timeline serves all pages and all viewers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ringtune.dashboard.data.cache import Cache
from ringtune.dashboard.data.live.analysis import NEWEST_SPANS, LiveAnalysis
from ringtune.dashboard.data.live.steps import newest_steps
from ringtune.dashboard.data.live.timeline import LiveTimeline, NotFollowed
from ringtune.dashboard.data.runs import RunInfo
from ringtune.timeline.spans import Trace

T = TypeVar("T")

COST_FACTOR = 1000
"""An expensive result is recomputed after this many times its CPU time: 0.1 % of a core."""
LEAST_INTERVAL_S = 10.0


@dataclass(frozen=True)
class Made(Generic[T]):
    """A cached result: when it was computed, on the clock of `time.monotonic`, and until when it is valid."""

    value: T
    at_s: float
    until_s: float


class LiveRuns:
    """The running jobs that pages show. Safe to use from several threads."""

    def __init__(self) -> None:
        self._timelines = Cache(capacity=4)
        self._analyses = Cache(capacity=4)
        self._not_followed: set[Path] = set()
        self._made: dict[Hashable, Made[Any]] = {}
        self._lock = threading.Lock()

    def timeline(self, run: RunInfo) -> LiveTimeline | None:
        """Return the follower of a run's growing timeline; None where it does not grow or cannot be followed."""
        if run.status != "live" or run.path in self._not_followed:
            return None
        found: LiveTimeline = self._timelines.get(run.path, None, lambda: LiveTimeline(run.path))
        return found

    def give_up(self, run: RunInfo) -> None:
        """Stop following a run's timeline."""
        self._not_followed.add(run.path)

    def analysis(self, run: RunInfo) -> LiveAnalysis | None:
        """Return the analysis of a running job, as `timeline` returns the timeline."""
        live = self.timeline(run)
        if live is None:
            return None
        found: LiveAnalysis = self._analyses.get(run.path, id(live), lambda: LiveAnalysis(live))
        return found

    def newest(self, run: RunInfo) -> Trace | None:
        """Return the newest steps of a running job's timeline; None where it is not followed, or holds nothing.

        Raises:
            Unreadable: It cannot be read.
        """
        live = self.timeline(run)
        if live is None:
            return None
        try:
            with live.held() as index:
                return newest_steps(index, NEWEST_SPANS) if index.lanes else None
        except NotFollowed:
            self.give_up(run)
            return None

    def throttled(self, key: Hashable, build: Callable[[], T]) -> Made[T]:
        """Return the result of `build`, recomputed only after `COST_FACTOR` times its CPU time."""
        with self._lock:
            known = self._made.get(key)
            if known is not None and time.monotonic() < known.until_s:
                return known
            begin = time.thread_time()
            value = build()
            now = time.monotonic()
            made = Made(value, now, now + max(LEAST_INTERVAL_S, COST_FACTOR * (time.thread_time() - begin)))
            if len(self._made) >= 64:
                self._made.clear()
            self._made[key] = made
            return made

    def alias(self, name: Hashable, key: Hashable) -> None:
        """Register a cached result under another name too."""
        with self._lock:
            if key in self._made:
                self._made[name] = self._made[key]

    def made(self, key: Hashable) -> Made[Any] | None:
        """Return the last result of `throttled`, None where there is none."""
        with self._lock:
            return self._made.get(key)
