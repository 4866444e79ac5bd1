"""Timelines of runs, and what is computed from them: analyses, the cost model, differences of two runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ringtune import layout
from ringtune.dashboard.data import compare, job, scaling_runs
from ringtune.dashboard.data.analysis import Analysis, analyse, open_analysis
from ringtune.dashboard.data.cache import Cache
from ringtune.dashboard.data.compare import Contrast
from ringtune.dashboard.data.files import Signature, Unreadable, listing, signature
from ringtune.dashboard.data.live.timeline import NotFollowed
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.data.scaling_runs import Factors
from ringtune.dashboard.data.timeline import store, trace
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.data.timeline.prepare import Preparations, Preparing
from ringtune.dashboard.data.whatif import Baseline
from ringtune.dashboard.stores.live import LiveStore
from ringtune.dashboard.stores.runs import RunStore
from ringtune.dashboard.units import duration, long_duration, moment
from ringtune.timeline.spans import Trace
from ringtune.tuner.model.calibrate import Model

T = TypeVar("T")

COST_FACTOR = 100
"""A growing timeline is read again after this many times its reading time: one per cent of a core."""
SHOWN_FROM_S = 3.0
"""From this interval on, the page says how old its data are."""


@dataclass
class TimelineStore:
    """Reads timelines of runs for pages and caches what it read. Safe to use from several threads.

    Attributes:
        live: Follows timelines of running jobs.
        runs: Has the step logs, by which runs without timelines are compared.
    """

    live: LiveStore
    runs: RunStore
    _small: Cache = field(default_factory=lambda: Cache(capacity=256))
    _indexes: Cache = field(default_factory=lambda: Cache(capacity=3))
    _analyses: Cache = field(default_factory=lambda: Cache(capacity=8))
    _preparations: Preparations = field(default_factory=Preparations)
    _fresh_until: dict[Path, tuple[float, Signature]] = field(default_factory=dict)
    _made: dict[Path, tuple[int, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def timeline(self, run: RunInfo) -> TimelineIndex | Preparing:
        """Return the timeline of a run, read anew when its files changed; a large one only once it is prepared.

        Raises:
            Unreadable: There is a timeline, but it cannot be shown; the message says why.
        """
        return self._of_timeline(run, self._indexes, TimelineIndex.build, store.open_index)

    @contextlib.contextmanager
    def watched(self, run: RunInfo) -> Iterator[TimelineIndex | Preparing]:
        """Lend the timeline of a run for drawing; a live one includes the newest events of its ranks.

        Raises:
            Unreadable: See `timeline`.
        """
        live = self.live.timeline(run)
        with contextlib.ExitStack() as stack:
            try:
                index = stack.enter_context(live.held()) if live else self.timeline(run)
            except NotFollowed:
                self.live.give_up(run)
                index = self.timeline(run)
            yield index

    def analysis(self, run: RunInfo) -> Analysis | Preparing:
        """Return the analyses of a run's timeline, as `timeline` returns the timeline.

        Raises:
            Unreadable: See `timeline`.
        """
        return self._of_timeline(run, self._analyses, analyse, open_analysis)

    def _of_timeline(
        self,
        run: RunInfo,
        kept: Cache,
        build: Callable[[Trace, tuple[str, ...]], T],
        opened: Callable[[Path], T | None],
    ) -> T | Preparing:
        """Return the analyses of a run's timeline: computed now for a small one, read from disk for a large one."""
        files, state = trace.sources(run.path), self._signature(run.path)
        if not trace.is_large(files):
            return kept.get(run.path, state, lambda: self._built(run.path, files, build))
        known: T | None = kept.peek(run.path, state)
        if known is not None:
            return known
        folder = store.place_of(run.path, state)
        found = opened(folder)
        if found is None:
            preparing = self._preparations.of(run.path, folder)
            if preparing is not None:
                return preparing
            found = opened(folder)
            if found is None:
                raise Unreadable("The timeline's index was removed after it was prepared; reload the page")
        self._rest(run.path, state, self._preparations.seconds(folder))
        return kept.get(run.path, state, lambda: found)

    def model(self, run: RunInfo) -> Model | Preparing | None:
        """Return the cost model fitted to a run's timeline; None when nothing was recorded.

        Of a running job it is fitted to the newest steps, and refitted now and then (`LiveStore.made_s`).

        Raises:
            Unreadable: There is a timeline, but it says too little.
        """
        return self._of_trace(run, "model", lambda trace: job.fitted(trace, run.name))

    def baseline(self, run: RunInfo) -> Baseline | Preparing | None:
        """Return the model of a run with what it says of the run itself, as `model` does."""
        return self._of_trace(run, "baseline", lambda trace: Baseline.of(job.fitted(trace, run.name)))

    def _of_trace(self, run: RunInfo, what: str, build: Callable[[Trace], T]) -> T | Preparing | None:
        """Return what is derived from the trace of a run; None when nothing was recorded."""
        if self.live.follows(run):
            value = self.live.throttled((what, run.path), lambda: _unless_empty(self.live.trace(run), build))
            if self.live.follows(run):
                return value
        index = self.timeline(run)
        if isinstance(index, Preparing):
            return index
        if not len(index.spans):
            return None
        state = self._signature(run.path)
        return self._small.get((what, run.path), state, lambda: build(job.recorded(index, run.hosts)))

    def contrast(self, first: RunInfo, second: RunInfo) -> Contrast | None:
        """Compare two runs by their timelines, or by their step logs; None when one has too few steps.

        Where one is running, the comparison is repeated now and then: `LiveStore.made_s`, "contrast" of the running
        one.

        Raises:
            Unreadable: There are timelines, but they cannot be compared.
        """
        running = next((run for run in (first, second) if run.status == "live"), None)
        key = ("contrast", first.path, second.path)
        if running is not None:
            found = self.live.throttled(key, lambda: self._contrast(first, second))
            self.live.alias(("contrast", running.path), key)
            return found
        runs = (first, second)
        logs = [path for run in runs for path in listing(run.path, layout.step_logs(run.path), ".jsonl")]
        ready = all(self._ready(run) is not None for run in runs)
        state = (*(self._signature(run.path) for run in runs), ready, signature(logs))
        return self._small.get(key, state, lambda: self._contrast(first, second))

    def _contrast(self, first: RunInfo, second: RunInfo) -> Contrast | None:
        traces = [self._trace(run) for run in (first, second)]
        known = [trace for trace in traces if trace is not None]
        if len(known) == len(traces):
            return compare.of_traces(*known)
        return compare.of_logs(self.runs.steps(first), self.runs.steps(second))

    def _trace(self, run: RunInfo) -> Trace | None:
        """Return the trace of a run where it can be had at once: of a running job the newest steps."""
        if self.live.follows(run):
            with contextlib.suppress(Unreadable):
                return self.live.trace(run)
            return None
        index = self._ready(run)
        return job.recorded(index, run.hosts) if index is not None else None

    def factors(self, run: RunInfo, reference: RunInfo | None, *, strong: bool) -> Factors | None:
        """Return the factors of a run's efficiency; None without a timeline that can be shown at once.

        Raises:
            Unreadable: The timeline does not say when ranks waited.
        """
        runs = (run, reference) if reference and reference.id != run.id else (run,)
        label = f"{run.name} · {run.ranks}"

        def build() -> Factors | None:
            traces = [self._trace(one) for one in runs]
            known = [trace for trace in traces if trace is not None]
            return scaling_runs.factors(label, *known, strong=strong) if traces[0] is not None else None

        if any(one.status == "live" for one in runs):
            return self.live.throttled(("factors", run.path, strong), build)
        state = (*(self._signature(one.path) for one in runs), tuple(bool(self._ready(one)) for one in runs))
        return self._small.get(("factors", run.path, strong), state, build)

    def _ready(self, run: RunInfo) -> TimelineIndex | None:
        """Return the timeline of a run if it has steps and can be shown at once."""
        try:
            index = self.timeline(run)
        except Unreadable:
            return None
        return index if isinstance(index, TimelineIndex) and index.step_range() else None

    def _built(self, run: Path, files: list[Path], build: Callable[[Trace, tuple[str, ...]], T]) -> T:
        begin = time.monotonic()
        try:
            return build(*trace.read_all(run, files))
        finally:
            self._rest(run, signature(files), time.monotonic() - begin)

    def _rest(self, run: Path, state: Signature, seconds: float) -> None:
        """Treat a state of a timeline as the newest one for a while."""
        with self._lock:
            self._fresh_until[run] = (time.monotonic() + COST_FACTOR * seconds, state)
            self._made[run] = (time.time_ns(), seconds)

    def pace_words(self, run: RunInfo) -> str:
        """Return the age of a running job's timeline in words, where it is rebuilt now and then; else nothing."""
        with self._lock:
            at_ns, took_s = self._made.get(run.path, (0, 0.0))
        if run.status != "live" or COST_FACTOR * took_s < SHOWN_FROM_S:
            return ""
        return (
            f"The job is running. The page shows its timeline as of {moment(at_ns)}: it is rebuilt every "
            f"{long_duration(int(1e9 * COST_FACTOR * took_s))}, because it takes {duration(1e9 * took_s)} of a core."
        )

    def state(self, run: RunInfo, *, followed: bool) -> tuple[object, ...]:
        """Return what changes when there is something new to show of a timeline.

        Args:
            run: The run.
            followed: Whether the page shows new events of a running job at once; for others these are nothing new.
        """
        live = self.live.timeline(run)
        if live is not None:
            return (live.state,) if followed else ()
        return (self._signature(run.path), self._progress(run.path))

    def _signature(self, run: Path) -> Signature:
        """Return the signature of a run's timeline, the former one as long as reading it again would cost too much."""
        with self._lock:
            until, state = self._fresh_until.get(run, (0.0, ()))
        return state if time.monotonic() < until else signature(trace.sources(run))

    def _progress(self, run: Path) -> float:
        """How far the preparation of a run's timeline is; 0 when none is needed."""
        return self._preparations.share(store.place_of(run, self._signature(run)))


def _unless_empty(trace: Trace | None, build: Callable[[Trace], T]) -> T | None:
    return build(trace) if trace is not None and len(trace.spans) else None
