"""How often pages of running jobs look and draw: so often that they are of now, and no dearer than a job can bear."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.routes import Route

SLOW_MS = 6000
"""Figures of a running job are drawn again at most this often."""
DRAWING_REST = 2000
"""And after this many times the CPU time that drawing them took: a page must not cost the job's machine a per cent."""
BEAT_SHARE = 0.007
"""Of a core: so much may the beats of a view take in the long run, where a job has many ranks."""
BURST_S = 0.03
"""So much they may take beyond it for a while."""
SOONEST_MS, LATEST_MS = 650, 850
"""A page asks again after so long, at the least and at the most: what it shows is to be of the last second."""
PACE_SHARE = 0.0085
"""Of a core: in between, pages ask so often that a view takes this."""
REQUEST_S = 0.0018
"""What a beat costs beside what is measured of it: a request's way through the server."""
RARE_S = 60.0
"""Once in so long a beat counts as no more than that: the first one, which reads all, or one at which lanes move."""
_MOST_VIEWS = 256
_FORGET = 0.1
"""How much the last beat counts in what beats take usually."""
_STEP_MS = 50


@dataclass(frozen=True)
class _Spent:
    """Of a view: when it had its last beat and its last dear one, what was left then beyond its share, and what its
    beats take usually.
    """

    at_s: float
    dear_s: float
    left_s: float
    usual_s: float


class Beats:
    """What looking and drawing cost of late. Safe to use from several threads."""

    def __init__(self) -> None:
        self._spent: dict[Hashable, _Spent] = {}
        self._drawing_s: dict[tuple[str, str], float] = {}
        self._look = threading.local()
        self._lock = threading.Lock()

    @property
    def known(self) -> dict[str, RunInfo | None] | None:
        """The runs that this thread's beat has looked at so far; None where there is no beat."""
        found: dict[str, RunInfo | None] | None = getattr(self._look, "runs", None)
        return found

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Do something in a beat that has a pace of its own, and costs the beat no rest."""
        begin = time.thread_time()
        try:
            yield
        finally:
            self._look.apart_s = getattr(self._look, "apart_s", 0.0) + time.thread_time() - begin

    @contextlib.contextmanager
    def one(self, view: Hashable) -> Iterator[None]:
        """Be a beat of a view of a page: every run is looked at once (`known`), and what it takes is measured."""
        begin, self._look.runs, self._look.apart_s = time.thread_time(), {}, 0.0
        try:
            yield
        finally:
            self._look.runs = None
            took = time.thread_time() - begin - self._look.apart_s
            with self._lock:
                now = time.monotonic()
                left, before = self._left(view, now), self._spent.pop(view, None)
                dear_s, usual_s = (before.dear_s, before.usual_s) if before else (-math.inf, 0.0)
                if before is not None:  # the first one reads all
                    usual_s = usual_s + _FORGET * (min(took, 2 * usual_s) - usual_s) if usual_s else min(took, BURST_S)
                if took > BURST_S and now > dear_s + RARE_S:
                    took, dear_s = BURST_S, now
                while len(self._spent) >= _MOST_VIEWS:
                    self._spent.pop(next(iter(self._spent)))
                self._spent[view] = _Spent(now, dear_s, left + took, usual_s)

    def rests(self, view: Hashable) -> bool:
        """Whether the last beats of a view were so dear that the next one has to wait."""
        with self._lock:
            return self._left(view, time.monotonic()) > BURST_S

    def again_ms(self, view: Hashable) -> int:
        """After how many milliseconds a page asks for the next beat of a view; in whole steps, it has to keep it."""
        with self._lock:
            spent = self._spent.get(view)
        usual_s = spent.usual_s if spent else 0.0
        least_ms = 1000 * (usual_s + REQUEST_S) / PACE_SHARE
        return min(max(_STEP_MS * math.ceil(least_ms / _STEP_MS), SOONEST_MS), LATEST_MS)

    def _left(self, view: Hashable, now: float) -> float:
        """Seconds of a core that the beats of a view took beyond their share."""
        spent = self._spent.get(view)
        return max(0.0, spent.left_s - BEAT_SHARE * (now - spent.at_s)) if spent else 0.0

    @contextlib.contextmanager
    def drawing(self, route: Route) -> Iterator[None]:
        """Measure what the drawing of a page's figures costs; `pace_ms` goes by it."""
        begin = time.thread_time()
        yield
        with self._lock:
            self._drawing_s[route.page, route.run] = time.thread_time() - begin

    def pace_ms(self, route: Route, run: RunInfo | None) -> int:
        """Return how many milliseconds a page waits before it draws its figures again; none where nothing runs."""
        if run is not None and run.status != "live":
            return 0
        with self._lock:
            took = self._drawing_s.get((route.page, route.run), 0.0)
        return max(SLOW_MS, round(1000 * DRAWING_REST * took))
