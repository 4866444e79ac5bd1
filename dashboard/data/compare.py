"""Runs side by side: what got slower or faster, how step times are spread, what was set differently.

The statistics are those of `ringtune.timeline.analysis.comparison`. This module chooses the samples: the
timelines where both runs have one, otherwise the step logs, which hold fewer quantities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ringtune.dashboard.data import job
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.data.step_totals import common_steps
from ringtune.dashboard.data.steps import Floats, Steps, newest, steady
from ringtune.dashboard.units import duration, plain, size
from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.comparison import Change, Samples, compare, contrast
from ringtune.timeline.spans import Ints, Trace

NEWEST_STEPS = 1000
"""The most steps of a run that are compared; resampling more takes seconds."""

BINS = 48
MARGIN = 1.1
STEP = ("step", "step")


@dataclass(frozen=True)
class Contrast:
    """What changed from the first run to the second.

    Attributes:
        changes: Worst first; times a step in nanoseconds.
        steps: Of both runs that were compared.
        source: ``timelines`` or ``step logs``.
        only: What just the first, and just the second, has.
    """

    changes: tuple[Change, ...]
    steps: tuple[int, int]
    source: str
    only: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def step(self) -> Change | None:
        """What changed in the step as a whole."""
        return next((change for change in self.changes if (change.kind, change.what) == STEP), None)


def of_traces(first: Trace, second: Trace) -> Contrast:
    """Compare two timelines, warm-up left out.

    Raises:
        Unreadable: One of them has fewer than two steps.
    """
    try:
        found = compare(job.steady(first, NEWEST_STEPS), job.steady(second, NEWEST_STEPS))
    except RingtuneError as error:
        raise Unreadable(f"The timelines cannot be compared: {plain(error, 300)}") from error
    steps = (found.first_steps, found.second_steps)
    return Contrast(found.changes, steps, "timelines", (found.only_first, found.only_second))


def of_logs(first: Steps, second: Steps) -> Contrast | None:
    """Compare two step logs, warm-up left out; None when one has fewer than two steps."""
    samples = step_samples(first), step_samples(second)
    if any(len(one.get(STEP, ())) < 2 for one in samples):
        return None
    alone = [
        tuple(sorted(f"{kind} {what}" for kind, what in samples[n].keys() - samples[1 - n].keys())) for n in (0, 1)
    ]
    counts = (len(samples[0][STEP]), len(samples[1][STEP]))
    return Contrast(contrast(*samples), counts, "step logs", (alone[0], alone[1]))


def step_samples(table: Steps) -> Samples:
    """Return nanoseconds by step of what step logs know: the job's step, and per rank and stage.

    The job's step is as long as its slowest rank's, but at most from the last rank's end of the one before to its own,
    as in a timeline: where a rank pauses after its gradients were sent, the others wait for it in their next step, and
    one pause would count in two.
    """
    ranks = [steady(rank) for rank in table.ranks if len(rank)]
    found: dict[tuple[str, str], Floats] = {}
    if not ranks:
        return found
    common = common_steps([rank.step for rank in ranks])[-NEWEST_STEPS:]
    rows = [np.searchsorted(rank.step, common) for rank in ranks]
    walls = np.array([rank.wall_ns[row] for rank, row in zip(ranks, rows, strict=True)], dtype=np.float64)
    found[STEP] = _job_lengths(walls, common) if len(common) else np.zeros(0)
    for rank, row, wall in zip(ranks, rows, walls, strict=True):
        waits = np.minimum(rank.wait_ns[row], wall)
        found["waiting", f"rank {rank.rank}"] = waits
        found["compute", f"rank {rank.rank}"] = wall - waits
    for stage in ("negotiate", "communicate", "copy"):
        column = [getattr(rank, f"{stage}_ns")[row] for rank, row in zip(ranks, rows, strict=True)]
        found["stage", stage] = np.mean(column, axis=0)
    return found


def _job_lengths(walls: Floats, steps: Ints) -> Floats:
    """Return how long steps of a job took, from walls by rank and step; ranks' clocks count from its first one."""
    longest: Floats = walls.max(axis=0)
    ends: Floats = walls.cumsum(axis=1).max(axis=0)
    follows = np.flatnonzero(np.diff(steps) == 1) + 1
    longest[follows] = np.minimum(longest[follows], ends[follows] - ends[follows - 1])
    return longest


@dataclass(frozen=True)
class Spread:
    """How step times of a run are spread: share of its steps in each bin, and in bounds of all runs' bins.

    Attributes:
        label: Of the run.
        edges_ns: Of the bins; one more than ``share``.
        share: Of the run's steps.
        median_ns: Of the step.
        beyond: Share of steps that are longer than the last bin.
    """

    label: str
    edges_ns: Floats
    share: Floats
    median_ns: float
    beyond: float


def spreads(runs: Sequence[tuple[str, Floats]]) -> list[Spread]:
    """Return the spreads of step times over the same bins; runs without steps are left out.

    The bins reach a little beyond the 95th percentile of the run that has the longest; outliers would flatten the rest.
    """
    known = [(label, walls) for label, walls in runs if len(walls)]
    if not known:
        return []
    low = min(float(walls.min()) for _, walls in known)
    high = max(min(float(walls.max()), float(np.percentile(walls, 95)) * MARGIN) for _, walls in known)
    edges = np.linspace(low, max(high, low * 1.001 + 1), BINS + 1)
    return [spread_over(label, walls, edges) for label, walls in known]


def newest_walls(table: Steps) -> Floats:
    """Return how long the newest steps of a run took on their slowest ranks, warm-up left out: a look at its end."""
    found = newest(table, NEWEST_STEPS)
    if found is None:
        return np.zeros(0)
    last, walls = found
    return walls[1:] if last < NEWEST_STEPS and len(walls) > last else walls


def spread_over(label: str, walls: Floats, edges: Floats) -> Spread:
    """Return the spread of a run's steps over bins that are there already."""
    share = np.histogram(walls, edges)[0] / max(1, len(walls))
    return Spread(label, edges, share, float(np.median(walls)), float((walls > edges[-1]).mean()))


def settings(first: RunInfo, second: RunInfo) -> list[tuple[str, str, str]]:
    """Return what was set differently: name, and the value of each run; a dash where it was not set."""
    values = _settings(first), _settings(second)
    names = sorted(values[0].keys() | values[1].keys())
    return [
        (name, values[0].get(name, "–"), values[1].get(name, "–"))
        for name in names
        if values[0].get(name) != values[1].get(name)
    ]


_EVERY_JOB = frozenset(
    f"RINGTUNE_{name}"
    for name in (
        *("JOB", "STORE", "MASTER", "MASTER_ADDR", "MASTER_PORT", "RUN_DIR", "TIMELINE", "METRICS_PORT"),
        *("RANK", "LOCAL_RANK", "SIZE", "HOSTNAME", "WORKER", "LAUNCHER"),
    )
)
"""Settings by which ranks meet and that differ between any two jobs, so that a difference means nothing."""


def _settings(run: RunInfo) -> dict[str, str]:
    found = {"Ranks": str(run.ranks), "Hosts": str(len(set(run.hosts))), "Command": " ".join(run.command)}
    found |= {f"Knob {name}": _knob(name, value) for name, value in run.knobs.items()}
    found |= {f"Version of {name}": value for name, value in run.versions.items() if value}
    found |= {name: value for name, value in run.config.items() if name not in _EVERY_JOB}
    return found


def _knob(name: str, value: int) -> str:
    return size(value) if name.endswith("_bytes") else duration(value) if name.endswith("_ns") else str(value)


@dataclass(frozen=True)
class Beside:
    """A run beside the first one: its mean step with the difference from the first run's; None for the first itself."""

    run: RunInfo
    steps: int
    mean_ns: float
    change: Change | None


def beside(runs: Sequence[tuple[RunInfo, Samples]]) -> list[Beside]:
    """Return every run beside the first one; runs without steps have no mean."""
    base = _step_alone(runs[0][1]) if runs else {}
    found = []
    for place, (run, samples) in enumerate(runs):
        own = _step_alone(samples)
        walls = own.get(STEP, np.zeros(0))
        changes = contrast(base, own) if place and base and own else ()
        mean = float(walls.mean()) if len(walls) else math.nan
        found.append(Beside(run, len(walls), mean, changes[0] if changes else None))
    return found


def _step_alone(samples: Samples) -> Mapping[tuple[str, str], Floats]:
    walls = samples.get(STEP)
    return {} if walls is None or len(walls) < 2 else {STEP: walls}
