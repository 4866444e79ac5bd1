"""What a run is like, gathered from the analyses: its recording, steps, causes, late ranks, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.comparison import range_samples
from ringtune.timeline.analysis.critical_path import critical_path
from ringtune.timeline.analysis.efficiency import Efficiency, efficiency
from ringtune.timeline.analysis.headline import headline
from ringtune.timeline.analysis.steps import Counted, Startup, step_lengths
from ringtune.timeline.analysis.stragglers import Stragglers, stragglers
from ringtune.timeline.analysis.summary import StepTimes, Summary, step_times_of, summarize
from ringtune.timeline.doctor.failure import Failure
from ringtune.timeline.doctor.outlook import Foresee, Outlook
from ringtune.timeline.runs.records import TuningResult
from ringtune.timeline.runs.run import Run
from ringtune.timeline.units import ranks_text

Found = TypeVar("Found")

UNKNOWN_TRACE = "no timeline was recorded, so where the time goes and who is late is not known"


@dataclass(frozen=True)
class RangeTime:
    """A phase of the step that the program or its framework named: ns a step, on the quickest and the slowest rank."""

    name: str
    least_ns: float
    most_ns: float
    slowest: int


@dataclass(frozen=True)
class Diagnosis:
    """One run. None and empty where it is not known; ``unknown`` says why, by the name of what is not.

    Attributes:
        headline: What to know first, and one action.
        failure: How a run failed, or why it hangs.
        summary: Health of the recording, and steps.
        startup: What is left out.
        steps: Of the job without its start-up; of a run without a timeline by its step logs.
        path: Nanoseconds of the critical path by cause, largest first.
        efficiency: POP's factors.
        ranges: Named phases, longest first.
        late: Who made the others wait.
        tuning: How a tuning session of this run ended.
        outlook: What changes would give.
        unknown: Sentences.
    """

    headline: str
    failure: Failure | None
    summary: Summary | None
    startup: Startup | None
    steps: StepTimes | None
    path: Mapping[str, int]
    efficiency: Efficiency | None
    ranges: tuple[RangeTime, ...]
    late: Stragglers | None
    tuning: TuningResult | None
    outlook: Outlook
    unknown: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "headline": self.headline,
            "failure": None if self.failure is None else asdict(self.failure),
            "summary": None if self.summary is None else self.summary.to_json(),
            "startup": None if self.startup is None else asdict(self.startup),
            "steps": None if self.steps is None else asdict(self.steps),
            "critical_path_ns": dict(self.path),
            "efficiency": None if self.efficiency is None else self.efficiency.to_json(),
            "ranges": [asdict(one) for one in self.ranges],
            "stragglers": None if self.late is None else self.late.to_json(),
            "tuning": None if self.tuning is None else asdict(self.tuning),
            "outlook": asdict(self.outlook),
            "unknown": dict(self.unknown),
        }


def diagnose(found: Counted | None, run: Run | None, failed: Failure | None, foresee: Foresee | None) -> Diagnosis:
    """Return what is known of a run.

    Args:
        found: Its trace without the start-up; None where it has none.
        run: Its folder; None where files were named.
        failed: How it failed, or why it hangs, if it does.
        foresee: The model; None where there is none.
    """
    tuning = run.tuning.result if run is not None else None
    if found is None:
        return _without_trace(run, failed, tuning)
    trace, unknown = found.trace, dict[str, str]()

    def known(what: str, analysis: Callable[[], Found]) -> Found | None:
        try:
            return analysis()
        except RingtuneError as error:
            unknown[what] = str(error)
            return None

    summary = summarize(trace)
    late = known("late ranks", lambda: stragglers(trace, permuted=False))
    lacks = summary.lacks
    whole = not lacks.ranks
    if not whole:
        # What a rank waited for lies in the parts that are not there: its time would be put down to communication.
        unknown["time"] = f"what set the length of the steps is not known without rank {ranks_text(lacks.ranks)}"
        what = "no whole part" if lacks.cut else "no part"
        unknown["predictions"] = f"rank {ranks_text(lacks.ranks)} left {what}"
    path = known("critical path", lambda: critical_path(trace)) if whole else None
    factors = known("efficiency", lambda: efficiency(trace)) if whole else None
    name = run.name if run is not None else ""
    asked = foresee if whole and failed is None else None
    seen = known("predictions", lambda: asked(trace, name)) if asked is not None else None
    causes = sorted(path.causes.items(), key=lambda one: -one[1]) if path is not None else []
    first = failed.words() if failed is not None else headline(trace, late, summary)
    return Diagnosis(
        headline=first or "the trace says neither who was late nor who waited: record with ringtune run --timeline",
        failure=failed,
        summary=summary,
        startup=found.startup,
        steps=summary.steps,
        path=dict(causes),
        efficiency=factors,
        ranges=_ranges(found),
        late=late,
        tuning=tuning,
        outlook=seen or Outlook((), ()),
        unknown=unknown,
    )


def _without_trace(run: Run | None, failed: Failure | None, tuning: TuningResult | None) -> Diagnosis:
    first = failed.words() if failed is not None else f"{UNKNOWN_TRACE}: record one with ringtune run --timeline"
    return Diagnosis(
        headline=first,
        failure=failed,
        summary=None,
        startup=None,
        steps=_logged_steps(run) if run is not None else None,
        path={},
        efficiency=None,
        ranges=(),
        late=None,
        tuning=tuning,
        outlook=Outlook((), ()),
        unknown={"timeline": UNKNOWN_TRACE},
    )


def _logged_steps(run: Run) -> StepTimes | None:
    """Steps by the step logs, each as long as on its slowest rank."""
    tables = [table for table in run.steps.values() if len(table)]
    if not tables:
        return None
    steps, place = np.unique(np.concatenate([table.step for table in tables]), return_inverse=True)
    longest = np.zeros(len(steps), dtype=np.int64)
    np.maximum.at(longest, place, np.concatenate([table.wall_ns for table in tables]))
    return step_times_of(steps, longest)


def _ranges(found: Counted) -> tuple[RangeTime, ...]:
    """The named phases by what they take on the slowest rank."""
    steps, _ = step_lengths(found.trace.spans)
    if not len(steps):
        return ()
    by_name: dict[str, list[tuple[float, int]]] = {}
    for name, rank, sums in range_samples(found.trace.spans, steps):
        by_name.setdefault(name, []).append((float(sums.mean()), rank))
    times = [RangeTime(name, min(rows)[0], *max(rows)) for name, rows in by_name.items()]
    return tuple(sorted(times, key=lambda one: -one.most_ns))
