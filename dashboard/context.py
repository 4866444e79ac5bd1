"""The state behind the pages: the served folder and everything that is cached between requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ringtune import layout
from ringtune.dashboard import page_registry, routes
from ringtune.dashboard.cpu_budget import CpuBudget
from ringtune.dashboard.data import compare, job, machine, scaling, scaling_runs, tuning
from ringtune.dashboard.data.analysis import Analysis, analyse, open_analysis
from ringtune.dashboard.data.cache import Cache
from ringtune.dashboard.data.compare import Contrast
from ringtune.dashboard.data.files import Signature, Unreadable, listing, signature
from ringtune.dashboard.data.live.analysis import Newest
from ringtune.dashboard.data.live.jobs import LiveRuns, Made
from ringtune.dashboard.data.live.timeline import NotFollowed
from ringtune.dashboard.data.machine import MachineTable
from ringtune.dashboard.data.posterior import Learned, learned
from ringtune.dashboard.data.run_figures import FiguresReader
from ringtune.dashboard.data.runs import RunInfo, RunsFolder, UnknownRun, newest_walls
from ringtune.dashboard.data.scaling import ScalingTable
from ringtune.dashboard.data.scaling_runs import Factors
from ringtune.dashboard.data.steps import StepReader, Steps
from ringtune.dashboard.data.system import SampleReader, System
from ringtune.dashboard.data.timeline import store, trace
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.data.timeline.prepare import Preparations, Preparing
from ringtune.dashboard.data.tuning import TuningHistory
from ringtune.dashboard.data.whatif import Baseline
from ringtune.dashboard.routes import Route
from ringtune.dashboard.units import duration, long_duration, moment
from ringtune.timeline.spans import Trace
from ringtune.tuner.model.calibrate import Model

T = TypeVar("T")

COST_FACTOR = 100
"""A growing timeline is read again after this many times its reading time: one per cent of a core."""
SHOWN_FROM_S = 3.0
"""From this interval on, the page says how old its data are."""


@dataclass
class Context:
    """Reads runs for pages and caches what it read. Safe to use from several threads.

    Attributes:
        folder: The runs.
        prefix: Path under which the app is served, with a slash at both ends.
        cpu_budget, figures: The CPU budget of pages of running jobs; what the table of runs says of each.
    """

    folder: RunsFolder
    prefix: str = "/"
    cpu_budget: CpuBudget = field(default_factory=CpuBudget)
    figures: FiguresReader = field(default_factory=FiguresReader)
    _steps: Cache = field(default_factory=lambda: Cache(capacity=8))
    _samples: Cache = field(default_factory=lambda: Cache(capacity=8))
    _small: Cache = field(default_factory=lambda: Cache(capacity=256))
    _indexes: Cache = field(default_factory=lambda: Cache(capacity=3))
    _analyses: Cache = field(default_factory=lambda: Cache(capacity=8))
    _live: LiveRuns = field(default_factory=LiveRuns)
    _preparations: Preparations = field(default_factory=Preparations)
    _fresh_until: dict[Path, tuple[float, Signature]] = field(default_factory=dict)
    _made: dict[Path, tuple[int, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def route(self, pathname: str | None, search: str | None) -> Route:
        """Return the route of an address."""
        return routes.parse(pathname, search, self.prefix)

    def run(self, route: Route) -> RunInfo | None:
        """Return the route's run, None when there is none of that name (any more)."""
        known = self.cpu_budget.known
        if known is not None and route.run in known:
            return known[route.run]
        try:
            found = self.folder.find(route.run)
        except UnknownRun:
            found = None
        if known is not None:
            known[route.run] = found
        return found

    def steps(self, run: RunInfo) -> Steps:
        """Return the steps of a run written so far; only new lines are read."""
        reader = self._steps.get(run.path, None, lambda: StepReader(run.path))
        return reader.read()

    def machines(self, run: RunInfo) -> MachineTable:
        """Return the machines of a run's ranks."""
        files = listing(run.path, run.path / layout.MACHINE_FOLDER, ".json")
        return self._small.get(("machines", run.path), signature(files), lambda: machine.data(run))

    def system(self, run: RunInfo, *, thinned: bool = True) -> System:
        """Return what ranks and machines of a run used so far; only new samples are read."""
        reader = self._samples.get(run.path, None, lambda: SampleReader(run.path))
        return reader.read(run.hosts) if thinned else reader.read_all(run.hosts)

    def tuning(self, run: RunInfo) -> TuningHistory:
        """Return the tuning history of a run."""
        stamp = signature([layout.tuning_journal(run.path)])
        return self._small.get(("tuning", run.path), stamp, lambda: tuning.data(run))

    def learned(self, run: RunInfo) -> Learned:
        """Return the surface over untried settings that a run's trials suggest; throttled for a running job."""
        if run.status == "live":
            return self._paced(("learned", run.path), lambda: learned(self.tuning(run))).value
        stamp = signature([layout.tuning_journal(run.path)])
        return self._small.get(("learned", run.path), stamp, lambda: learned(self.tuning(run)))

    def _paced(self, key: Hashable, build: Callable[[], T]) -> Made[T]:
        return self._live.throttled(key, build)

    def scaling(self, runs: list[RunInfo]) -> ScalingTable:
        """Return the scaling records of runs."""
        files = [path for run in runs for path in listing(run.path, layout.scaling_folder(run.path), ".json")]
        key = ("scaling", tuple(run.path for run in runs))
        return self._small.get(key, signature(files), lambda: scaling.data(runs))

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
        live = self._live.timeline(run)
        with contextlib.ExitStack() as stack:
            try:
                index = stack.enter_context(live.held()) if live else self.timeline(run)
            except NotFollowed:
                self._live.give_up(run)
                index = self.timeline(run)
            yield index

    def follows(self, run: RunInfo) -> bool:
        """Whether new events of a running job are shown at once; those of another tool's timeline are not."""
        return self._live.timeline(run) is not None

    def newest(self, run: RunInfo, what: str, *, anew: bool = False) -> Newest | None:
        """Return the analysis of a running job up to now; None where its timeline is not followed.

        Args:
            run: The run.
            what: ``lateness`` or ``sums``: the half that has to be up to date.
            anew: Repeat the full analysis where it is due.

        Raises:
            Unreadable: See `timeline`.
        """
        live = self._live.analysis(run)
        if live is None:
            return None
        try:
            return live.with_lateness(anew=anew) if what == "lateness" else live.with_sums(anew=anew)
        except NotFollowed:
            self._live.give_up(run)
            return None

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
        files, state = trace.sources(run.path), self._timeline_state(run.path)
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

        Of a running job it is fitted to the newest steps, and refitted now and then (`made_s`).

        Raises:
            Unreadable: There is a timeline, but it says too little.
        """
        return self._of_trace(run, "model", lambda trace: job.fitted(trace, run.name))

    def baseline(self, run: RunInfo) -> Baseline | Preparing | None:
        """Return the model of a run with what it says of the run itself, as `model` does."""
        return self._of_trace(run, "baseline", lambda trace: Baseline.of(job.fitted(trace, run.name)))

    def made_s(self, run: RunInfo, what: str) -> tuple[float, float] | None:
        """Return the age in seconds of a cached result of a running job, and the seconds until it is recomputed."""
        made = self._live.made((what, run.path)) if run.status == "live" else None
        now = time.monotonic()
        return (now - made.at_s, max(0.0, made.until_s - now)) if made is not None else None

    def _of_trace(self, run: RunInfo, what: str, build: Callable[[Trace], T]) -> T | Preparing | None:
        """Return what is derived from the trace of a run; None when nothing was recorded."""
        if self.follows(run):
            made = self._paced((what, run.path), lambda: _unless_empty(self._live.newest(run), build))
            if self.follows(run):
                return made.value
        index = self.timeline(run)
        if isinstance(index, Preparing):
            return index
        if not len(index.spans):
            return None
        state = self._timeline_state(run.path)
        return self._small.get((what, run.path), state, lambda: build(job.recorded(index, run.hosts)))

    def contrast(self, first: RunInfo, second: RunInfo) -> Contrast | None:
        """Compare two runs by their timelines, or by their step logs; None when one has too few steps.

        Where one is running, the comparison is repeated now and then (`made_s`, "contrast" of the running one).

        Raises:
            Unreadable: There are timelines, but they cannot be compared.
        """
        running = next((run for run in (first, second) if run.status == "live"), None)
        key = ("contrast", first.path, second.path)
        if running is not None:
            made = self._paced(key, lambda: self._contrast(first, second))
            self._live.alias(("contrast", running.path), key)
            return made.value
        runs = (first, second)
        logs = [path for run in runs for path in listing(run.path, layout.step_logs(run.path), ".jsonl")]
        ready = all(self._ready(run) is not None for run in runs)
        state = (*(self._timeline_state(run.path) for run in runs), ready, signature(logs))
        return self._small.get(key, state, lambda: self._contrast(first, second))

    def _contrast(self, first: RunInfo, second: RunInfo) -> Contrast | None:
        traces = [self._trace(run) for run in (first, second)]
        known = [trace for trace in traces if trace is not None]
        if len(known) == len(traces):
            return compare.of_traces(*known)
        return compare.of_logs(self.steps(first), self.steps(second))

    def _trace(self, run: RunInfo) -> Trace | None:
        """Return the trace of a run where it can be had at once: of a running job the newest steps."""
        if self.follows(run):
            with contextlib.suppress(Unreadable):
                return self._live.newest(run)
            return None
        index = self._ready(run)
        return job.recorded(index, run.hosts) if index is not None else None

    def walls(self, run: RunInfo) -> list[int]:
        """Return the newest step times of rank 0 in nanoseconds, at least 1 each."""
        log = layout.step_log(run.path, 0)
        found = self._small.get(("walls", run.path), signature([log]), lambda: newest_walls(run.path, log)[1])
        return [wall for wall in found if wall > 0]

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
            return self._paced(("factors", run.path, strong), build).value
        state = (*(self._timeline_state(one.path) for one in runs), tuple(bool(self._ready(one)) for one in runs))
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

    def _timeline_state(self, run: Path) -> Signature:
        """Return the signature of a run's timeline, the former one as long as reading it again would cost too much."""
        with self._lock:
            until, state = self._fresh_until.get(run, (0.0, ()))
        return state if time.monotonic() < until else signature(trace.sources(run))

    def stamp(self, route: Route, drawn: Mapping[str, Any] | None = None) -> str:
        """Return what changes when something that the route's page shows is written: a few `stat` calls.

        Of a run, what stands before the colon changes with its status and ``run.json`` alone.

        Args:
            route: The page.
            drawn: The page's description of what it has drawn.
        """
        if not route.run:
            compared = [self.run(Route("overview", one)) for one in _ids(drawn)] if route.page == "compare" else []
            known = [run for run in compared if run is not None]
            logs = [path for run in known for path in page_registry.shown_files("overview", run.path)]
            return str(hash(signature(logs) if known else self.folder.stamp()))
        run = self.run(route)
        if run is None:
            return "gone"
        path = run.path
        shown = self._timeline_shown(route.page, run) if route.page in page_registry.TIMELINE_PAGES else ()
        files = signature(page_registry.shown_files(route.page, path))
        return f"{run.status} {hash(signature([layout.run_file(path)]))}:{hash((files, shown))}"

    def redraw_interval_ms(self, route: Route) -> int:
        """Return the milliseconds until a page redraws its figures."""
        return self.cpu_budget.redraw_interval_ms(route, self.run(route) if route.run else None)

    def _timeline_shown(self, page: str, run: RunInfo) -> tuple[object, ...]:
        """Return what changes when a page has something new to show of a timeline."""
        live = self._live.timeline(run)
        if live is not None:
            return (live.state,) if page in page_registry.FOLLOWING_PAGES else ()
        return (self._timeline_state(run.path), self._progress(run.path))

    def _progress(self, run: Path) -> float:
        """How far the preparation of a run's timeline is; 0 when none is needed."""
        return self._preparations.share(store.place_of(run, self._timeline_state(run)))


def _unless_empty(trace: Trace | None, build: Callable[[Trace], T]) -> T | None:
    return build(trace) if trace is not None and len(trace.spans) else None


def _ids(drawn: Mapping[str, Any] | None) -> list[str]:
    """Return the runs that a page says it compares; from the browser, which may send anything."""
    ids = (drawn or {}).get("ids")
    return [one for one in ids[:8] if isinstance(one, str)] if isinstance(ids, list) else []
