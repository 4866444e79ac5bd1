"""What is kept of running jobs: growing timelines, their analyses, and results that are expensive to compute.

One reading of a timeline serves all pages and all viewers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ringtune.dashboard.data.cache import Cache
from ringtune.dashboard.data.live.analysis import NEWEST_SPANS, LiveAnalysis, Newest
from ringtune.dashboard.data.live.steps import newest_steps
from ringtune.dashboard.data.live.timeline import LiveTimeline, NotFollowed
from ringtune.dashboard.data.runs import RunInfo
from ringtune.timeline.spans import Trace

T = TypeVar("T")

COST_FACTOR = 1000
"""An expensive result is recomputed after this many times its CPU time: 0.1 % of a core."""
LEAST_INTERVAL_S = 10.0


@dataclass(frozen=True)
class _Made:
    """A cached result: when it was computed, on the clock of `time.monotonic`, and until when it is valid."""

    value: Any
    at_s: float
    until_s: float


class LiveStore:
    """Reads running jobs for pages and caches what it read. Safe to use from several threads."""

    def __init__(self) -> None:
        self._timelines = Cache(capacity=4)
        self._analyses = Cache(capacity=4)
        self._not_followed: set[Path] = set()
        self._made: dict[Hashable, _Made] = {}
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

    def follows(self, run: RunInfo) -> bool:
        """Whether new events of a running job are shown at once; those of another tool's timeline are not."""
        return self.timeline(run) is not None

    def analysis(self, run: RunInfo, what: str, *, anew: bool = False) -> Newest | None:
        """Return the analysis of a running job up to now; None where its timeline is not followed.

        Args:
            run: The run.
            what: ``lateness`` or ``sums``: the half that has to be up to date.
            anew: Repeat the full analysis where it is due.

        Raises:
            Unreadable: The timeline cannot be read; the message says why.
        """
        live = self.timeline(run)
        if live is None:
            return None
        found: LiveAnalysis = self._analyses.get(run.path, id(live), lambda: LiveAnalysis(live))
        try:
            return found.with_lateness(anew=anew) if what == "lateness" else found.with_sums(anew=anew)
        except NotFollowed:
            self.give_up(run)
            return None

    def trace(self, run: RunInfo) -> Trace | None:
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

    def throttled(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the result of `build`, recomputed only after `COST_FACTOR` times its CPU time."""
        with self._lock:
            known = self._made.get(key)
            if known is not None and time.monotonic() < known.until_s:
                value: T = known.value
                return value
            begin = time.thread_time()
            value = build()
            now = time.monotonic()
            made = _Made(value, now, now + max(LEAST_INTERVAL_S, COST_FACTOR * (time.thread_time() - begin)))
            if len(self._made) >= 64:
                self._made.clear()
            self._made[key] = made
            return value

    def alias(self, name: Hashable, key: Hashable) -> None:
        """Register a cached result under another name too."""
        with self._lock:
            if key in self._made:
                self._made[name] = self._made[key]

    def made_s(self, run: RunInfo, what: str) -> tuple[float, float] | None:
        """Return the age in seconds of a result of `throttled`, and the seconds until it is recomputed.

        None where the run has ended, or where there is no result of that name, which is ``(what, run.path)``.
        """
        if run.status != "live":
            return None
        with self._lock:
            made = self._made.get((what, run.path))
        now = time.monotonic()
        return (now - made.at_s, max(0.0, made.until_s - now)) if made is not None else None
