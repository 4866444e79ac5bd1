"""Analyses of a running job: its newest steps are analysed together now and then, each later step when it arrives.

The contribution of a step is computed from that step alone: its late rank, and the sums of
`ringtune.dashboard.data.live.totals`. So each poll of a page costs only the steps that are new. Results that need all
steps together (tests, tables, bandwidths by size) are as of the last full analysis, and the page says so
(`Newest.tested`).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.dashboard.data.analysis import Analysis, analyse, late_columns
from ringtune.dashboard.data.live.steps import last_step, newest_steps, steps_between
from ringtune.dashboard.data.live.timeline import LiveTimeline
from ringtune.dashboard.data.live.totals import RunningTotals
from ringtune.timeline.spans import Trace

NEWEST_SPANS = 60_000
"""The number of newest spans that are analysed together, which takes some tens of milliseconds."""
COST_FACTOR = 2000
"""A full analysis is repeated after this many times its CPU time: 0.05 % of a core."""
LEAST_INTERVAL_S = 6.0
MOST_BEHIND = 2000
"""When more steps than this have accumulated without a request, they are analysed together."""


@dataclass
class _Followed:
    """Steps that were added one by one after the last full analysis."""

    upto: int
    late: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    totals: RunningTotals = field(default_factory=RunningTotals)


@dataclass(frozen=True)
class Newest:
    """An analysis of a running job: ``last`` is its last step, ``tested`` the last step of the full analysis."""

    analysis: Analysis
    first: int
    last: int
    tested: int
    made_s: float
    """The moment of the full analysis, on the clock of `time.monotonic`."""


class LiveAnalysis:
    """Analyses the timeline of one running job. Safe to use from several threads.

    Args:
        live: Its timeline.
    """

    def __init__(self, live: LiveTimeline) -> None:
        self._live = live
        self._lock = threading.Lock()
        self._base = Analysis({})
        self._about = (-1, -1, -1)  # the timeline's generation, first and last step of the base
        self._made_s, self._until = 0.0, 0.0
        self._lateness, self._sums = _Followed(-1), _Followed(-1)

    def with_lateness(self, *, anew: bool) -> Newest:
        """Return the analysis with the late rank of every step so far; ``anew``: repeat the full analysis if it is due.

        Raises:
            Unreadable: The timeline cannot be read.
            NotFollowed: It cannot be followed.
        """
        with self._lock:
            trace, steps = self._came(self._lateness, anew=anew)
            if trace is not None:
                self._lateness.late.append(late_columns(trace))
                self._lateness.upto = steps[1]
            found = self._base
            if self._lateness.late:
                parts = [found.columns, *self._lateness.late]
                joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[-1]}
                # From here on both are one analysis.
                self._lateness.late = [{n: column[len(found.columns[n]) :] for n, column in joined.items()}]
                found = replace(found, columns={**found.columns, **joined})
            return self._newest(found, self._lateness)

    def with_sums(self, *, anew: bool) -> Newest:
        """Return the analysis with the totals of all steps so far; see `with_lateness`."""
        with self._lock:
            trace, steps = self._came(self._sums, anew=anew)
            if trace is not None:
                self._sums.totals.add(trace, steps[1] - steps[0])
                self._sums.upto = steps[1]
            found = replace(self._base, document=self._sums.totals.applied_to(self._base.document))
            return self._newest(found, self._sums)

    def _newest(self, found: Analysis, followed: _Followed) -> Newest:
        _, first, last = self._about
        return Newest(found, first, followed.upto, last, self._made_s)

    def _came(self, followed: _Followed, *, anew: bool) -> tuple[Trace | None, tuple[int, int]]:
        """Return the new steps and the last one before them; repeat the full analysis where it is due."""
        generation, _, last = self._about
        due = anew and time.monotonic() >= self._until
        if not due and last >= 0:
            came = self._live.came(generation, followed.upto, MOST_BEHIND)
            if came is not None:
                return came[0], (followed.upto, came[1])
        with self._live.held() as index:
            steps = (followed.upto, last_step(index))
            if due or generation != self._live.generation or steps[1] - steps[0] > MOST_BEHIND or last < 0:
                trace = newest_steps(index, NEWEST_SPANS)
            else:
                return (steps_between(index, *steps) if steps[1] > steps[0] else None), steps
        self._analyse(trace)
        return None, steps

    def _analyse(self, trace: Trace) -> None:
        begin = time.thread_time()
        self._base = analyse(trace)
        step = self._base.columns["step"]
        first, last = (int(step[0]), int(step[-1])) if len(step) else (-1, -1)
        self._about = (self._live.generation, first, last)
        self._lateness, self._sums = _Followed(last), _Followed(last)
        self._made_s = time.monotonic()
        self._until = self._made_s + max(LEAST_INTERVAL_S, COST_FACTOR * (time.thread_time() - begin))
