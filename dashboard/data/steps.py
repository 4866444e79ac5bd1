"""Steps over time and where their time went, from the ranks' step logs.

Notation, per rank and step, all in nanoseconds:
    wall       duration of the step
    exposed    time the training loop was blocked by communication (``wait_ns``)
    busy       time batches were on the links or copied (``communicate_ns + copy_ns``)
    overlapped the part of busy that ran beside computation: max(0, busy - exposed)
    alone      wall - exposed - overlapped: computation with no communication beside it
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune import layout
from ringtune.dashboard.data.files import Unreadable, integer
from ringtune.dashboard.data.jsonlines import LineFollower
from ringtune.dashboard.data.runs import rank_files
from ringtune.timeline.records import STEP_FIELDS, step_table
from ringtune.timeline.records import StepTable as RankSteps

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WARM_UP_STEPS = 1
"""Left out of statistics when there are more: the first step counts from init and holds the start of the job."""

_LARGEST = 2**60


def steady(steps: RankSteps) -> RankSteps:
    """Return the steps without the warm-up, or all of them when there are no others."""
    keep = steps.step >= WARM_UP_STEPS
    if not keep.any():
        return steps
    return replace(steps, **{name: getattr(steps, name)[keep] for name in STEP_FIELDS})


@dataclass(frozen=True)
class Steps:
    """Steps of all ranks of a run, and sentences about what could not be read."""

    ranks: tuple[RankSteps, ...]
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(len(rank) for rank in self.ranks)


class StepReader:
    """Reads the step logs of one run again and again; what was read stays read. Safe to use from several threads."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._followers: dict[int, LineFollower] = {}
        self._ranks: dict[int, tuple[int, RankSteps]] = {}
        self._lock = threading.Lock()
        self._table = Steps(())

    def files(self) -> dict[int, Path]:
        """Return the step logs by rank."""
        return rank_files(self._run, layout.step_logs(self._run), ".jsonl")

    def read(self) -> Steps:
        """Return all steps written so far."""
        with self._lock:
            problems = []
            for rank, path in self.files().items():
                follower = self._followers.setdefault(rank, LineFollower(self._run, path))
                try:
                    follower.follow()
                except Unreadable as error:
                    problems.append(str(error))
            changed = [rank for rank, follower in self._followers.items() if self._taken(rank, follower)]
            problems += [line for follower in self._followers.values() for line in follower.problems]
            if changed or tuple(problems) != self._table.problems:
                ranks = [self._ranks[rank][1] for rank in sorted(self._ranks) if len(self._ranks[rank][1])]
                self._table = Steps(tuple(ranks), tuple(problems))
            return self._table

    def _taken(self, rank: int, follower: LineFollower) -> bool:
        """Take a follower's new rows over into the rank's columns; whether there were any, or old ones became void."""
        restarts, known = self._ranks.get(rank, (follower.restarts, None))
        if restarts == follower.restarts and not follower.rows:
            return False
        fresh = rank_steps(rank, follower.rows)
        follower.rows.clear()
        if known is not None and restarts == follower.restarts:
            columns: dict[str, Any] = {
                name: np.concatenate((getattr(known, name), getattr(fresh, name))) for name in STEP_FIELDS
            }
            fresh = replace(fresh, **columns)
        self._ranks[rank] = (follower.restarts, fresh)
        return True


def rank_steps(rank: int, rows: Sequence[Mapping[str, object]]) -> RankSteps:
    """Return the columns of one rank; values that are no numbers count as 0."""
    clean = ({name: _bounded(row.get(name)) for name in STEP_FIELDS} for row in rows)
    return step_table(rank, clean)


def _bounded(value: object) -> int:
    return min(max(integer(value), -_LARGEST), _LARGEST)


@dataclass(frozen=True)
class StepLine:
    """Step times of one rank (or a statistic of all ranks) for a line: median, least and most of each bucket."""

    label: str
    rank: int
    step: Floats
    median_ns: Floats
    low_ns: Floats
    high_ns: Floats


LINE_LIMIT = 8
POINT_LIMIT = 600


def lines(table: Steps) -> list[StepLine]:
    """Return the step times to draw: one line a rank, or the median of all ranks with its span when they are many.

    At most `POINT_LIMIT` points a line: neighbouring steps share a bucket.
    """
    kept = [steady(rank) for rank in table.ranks if len(rank)]
    if len(kept) <= LINE_LIMIT:
        return [_line(f"rank {rank.rank}", rank.rank, rank.step, rank.wall_ns) for rank in kept]
    steps = np.concatenate([rank.step for rank in kept])
    walls = np.concatenate([rank.wall_ns for rank in kept])
    return [_line(f"median of {len(kept)} ranks", 0, steps, walls)]


def _line(label: str, rank: int, steps: Ints, walls: Ints) -> StepLine:
    first = int(steps.min())
    width = max(1, -(-(int(steps.max()) - first + 1) // POINT_LIMIT))
    bucket = (steps - first) // width
    order = np.lexsort((walls, bucket))
    steps, times, bucket = steps[order], walls[order].astype(np.float64), bucket[order]
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    counts = np.diff(starts, append=len(bucket))
    median = (times[starts + (counts - 1) // 2] + times[starts + counts // 2]) / 2
    at = np.minimum.reduceat(steps, starts).astype(np.float64)
    return StepLine(label, rank, at, median, times[starts], times[starts + counts - 1])


@dataclass(frozen=True)
class Breakdown:
    """Where one rank's time went, as means over its steps in nanoseconds; see the notation above.

    ``alone_ns + overlapped_ns + exposed_ns == wall_ns``. ``negotiate_ns`` is summed over operations that overlap,
    so it may exceed the step.
    """

    rank: int
    steps: int
    wall_ns: float
    alone_ns: float
    overlapped_ns: float
    exposed_ns: float
    negotiate_ns: float
    communicate_ns: float
    copy_ns: float


def breakdown(table: Steps) -> list[Breakdown]:
    """Return the breakdown of every rank, warm-up left out."""
    return [_rank_breakdown(steady(rank)) for rank in table.ranks if len(rank)]


def _rank_breakdown(steps: RankSteps) -> Breakdown:
    wall = float(steps.wall_ns.mean())
    exposed = float(np.minimum(steps.wait_ns, steps.wall_ns).mean())
    busy = steps.communicate_ns + steps.copy_ns
    room = np.maximum(steps.wall_ns - steps.wait_ns, 0)
    overlapped = float(np.clip(busy - steps.wait_ns, 0, room).mean())
    return Breakdown(
        rank=steps.rank,
        steps=len(steps),
        wall_ns=wall,
        alone_ns=wall - exposed - overlapped,
        overlapped_ns=overlapped,
        exposed_ns=exposed,
        negotiate_ns=float(steps.negotiate_ns.mean()),
        communicate_ns=float(steps.communicate_ns.mean()),
        copy_ns=float(steps.copy_ns.mean()),
    )


@dataclass(frozen=True)
class StepSummary:
    """The run's steps in a few numbers; warm-up left out of all but ``steps``.

    Attributes:
        steps: Steps that the furthest rank has ended.
        median_ns, low_ns, high_ns: Median and quartiles of the step time over all ranks.
        exposed_share: Blocked time as a share of the step time.
        overlapped_share: Share of the communication that ran beside computation; NaN without communication.
        bytes_per_step: Reduced payload of a rank in a step.
        collectives_per_step, batches_per_step: Operations, and batches they were fused into.
        latest_rank: Rank with the most computation (wall - exposed): the one others wait for; -1 for a single rank.
        latest_lead: How much more than the median rank's, as a share.
    """

    steps: int
    median_ns: float
    low_ns: float
    high_ns: float
    exposed_share: float
    overlapped_share: float
    bytes_per_step: float
    collectives_per_step: float
    batches_per_step: float
    latest_rank: int
    latest_lead: float


def summary(table: Steps) -> StepSummary | None:
    """Return the summary; None when no step was recorded."""
    kept = [steady(rank) for rank in table.ranks if len(rank)]
    if not kept:
        return None
    walls = np.concatenate([rank.wall_ns for rank in kept])
    low, median, high = (float(value) for value in np.percentile(walls, (25, 50, 75)))
    parts = breakdown(table)
    wall, exposed = sum(part.wall_ns for part in parts), sum(part.exposed_ns for part in parts)
    busy = sum(part.communicate_ns + part.copy_ns for part in parts)
    work = np.array([part.wall_ns - part.exposed_ns for part in parts])
    typical = float(np.median(work))
    return StepSummary(
        steps=max(int(rank.step.max()) for rank in table.ranks if len(rank)) + 1,
        median_ns=median,
        low_ns=low,
        high_ns=high,
        exposed_share=exposed / wall if wall > 0 else float("nan"),
        overlapped_share=sum(part.overlapped_ns for part in parts) / busy if busy > 0 else float("nan"),
        bytes_per_step=float(np.mean([rank.bytes.mean() for rank in kept])),
        collectives_per_step=float(np.mean([rank.collectives.mean() for rank in kept])),
        batches_per_step=float(np.mean([rank.batches.mean() for rank in kept])),
        latest_rank=parts[int(work.argmax())].rank if len(parts) > 1 else -1,
        latest_lead=float(work.max()) / typical - 1 if typical > 0 else 0.0,
    )
