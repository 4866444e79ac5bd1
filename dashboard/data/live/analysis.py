"""The analyses of a running job: of its newest steps as a whole now and then, and of every step since as it comes.

What a step adds is computed from that step alone: who was late in it, and the sums of
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
"""Most spans that are analysed as a whole, those of the newest steps: some tens of milliseconds."""
COST_FACTOR = 2000
"""All are analysed anew after so many times what that cost: a twentieth of a per cent of a core."""
LEAST_INTERVAL_S = 6.0
MOST_BEHIND = 2000
"""After so many steps that nobody looked at, they are analysed as a whole."""


@dataclass
class _Followed:
    """Steps that were added one after the other, to the first of which all before were analysed."""

    upto: int
    late: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    totals: RunningTotals = field(default_factory=RunningTotals)


@dataclass(frozen=True)
class Newest:
    """An analysis that goes on: ``last`` is its last step, ``tested`` the last of those that were analysed together."""

    analysis: Analysis
    first: int
    last: int
    tested: int
    made_s: float
    """When that was, on the clock of `time.monotonic`."""


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
        """Return the analysis with who was late in every step up to now; ``anew``: of all together if that is due.

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
                # From now on they are one.
                self._lateness.late = [{n: column[len(found.columns[n]) :] for n, column in joined.items()}]
                found = replace(found, columns={**found.columns, **joined})
            return self._newest(found, self._lateness)

    def with_sums(self, *, anew: bool) -> Newest:
        """Return the analysis with the sums of all steps up to now; see `with_lateness`."""
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
        """Return the steps that came and the last before them; analyse all where that is due."""
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

    @property
    def rest_s(self) -> float:
        """How long the last analysis of all stands."""
        return self._until - self._made_s
