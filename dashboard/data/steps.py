"""Steps over time and where their time went, from the ranks' step logs.

Notation, per rank and step, all in nanoseconds:
    wall       duration of the step
    blocked    time the training loop was blocked (``wait_ns``)
    exposed    the part of it that communication takes: step logs do not say who was late, so it is what the rank
               is blocked for that is blocked least, for which others waited if anybody was late
    waiting    blocked - exposed: for a late rank
    busy       time batches were on the links or copied (``communicate_ns + copy_ns``)
    overlapped the part of busy that ran beside computation: max(0, busy - blocked)
    alone      wall - blocked - overlapped: computation with no communication beside it

A timeline says it exactly (`ringtune.timeline.analysis.phases`).
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
from ringtune.dashboard.data.jsonlines import JsonRows
from ringtune.dashboard.data.live.columns import GrowingColumn
from ringtune.dashboard.data.runs import rank_files
from ringtune.dashboard.data.step_totals import (
    WARM_UP_STEPS,
    Breakdown,
    Histogram,
    LeastBlocked,
    RankTotals,
    StepSummary,
    summary,
)
from ringtune.timeline.runs.records import STEP_FIELDS, step_table
from ringtune.timeline.runs.records import StepTable as RankSteps

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LARGEST = 2**60


def steady(steps: RankSteps) -> RankSteps:
    """Return the steps without the warm-up, or all of them when there are no others."""
    keep = steps.step >= WARM_UP_STEPS
    if not keep.any():
        return steps
    return replace(steps, **{name: getattr(steps, name)[keep] for name in STEP_FIELDS})


@dataclass(frozen=True)
class Steps:
    """Steps of all ranks of a run, their totals, and sentences about what could not be read."""

    ranks: tuple[RankSteps, ...]
    parts: tuple[Breakdown, ...] = ()
    summary: StepSummary | None = None
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(len(rank) for rank in self.ranks)


class _RankLog:
    """The step log of one rank: its columns and totals, both grown by the rows that come."""

    def __init__(self, run: Path, rank: int, path: Path) -> None:
        self.follower = JsonRows(run, path)
        self.rank = rank
        self._restart()

    def _restart(self) -> None:
        self.restarted = False
        """Whether the last `take` found that the rows before had become void."""
        self._restarts = self.follower.restarts
        self._columns = {name: GrowingColumn(np.int64) for name in STEP_FIELDS}
        self.totals = RankTotals(self.rank)
        self.steps = self._view()

    def _view(self) -> RankSteps:
        columns: dict[str, Any] = {name: column.view() for name, column in self._columns.items()}
        return RankSteps(rank=self.rank, **columns)

    def take(self, walls: Histogram) -> bool:
        """Take over the rows that the follower read; whether there were any, or old ones became void."""
        self.restarted = void = self._restarts != self.follower.restarts
        if void:
            walls.add(steady(self.steps).wall_ns, sign=-1)
            self._restart()
        if self.follower.rows:
            fresh = rank_steps(self.rank, self.follower.rows)
            self.follower.rows.clear()
            self.totals.add(fresh, walls, self.steps)
            for name, column in self._columns.items():
                column.extend(getattr(fresh, name))
            self.steps = self._view()
            return True
        return void


class StepReader:
    """Follows the step logs of one run; each row is read once. Safe to use from several threads.

    A reading costs what the new rows cost, however many there are already.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._logs: dict[int, _RankLog] = {}
        self._walls = Histogram()
        self._least = LeastBlocked()
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
                if rank not in self._logs:
                    self._logs[rank] = _RankLog(self._run, rank, path)
                try:
                    self._logs[rank].follower.follow()
                except Unreadable as error:
                    problems.append(str(error))
            changed = [rank for rank, log in self._logs.items() if log.take(self._walls)]
            if any(log.restarted for log in self._logs.values()):
                self._least = LeastBlocked()
            problems += [line for log in self._logs.values() for line in log.follower.problems]
            if changed or tuple(problems) != self._table.problems:
                self._table = self._counted(tuple(problems))
            return self._table

    def _counted(self, problems: tuple[str, ...]) -> Steps:
        logs = [self._logs[rank] for rank in sorted(self._logs) if len(self._logs[rank].steps)]
        totals = [log.totals for log in logs]
        tables = tuple(log.steps for log in logs)
        self._least.take(tables)
        parts = tuple(one.breakdown(self._least.mean_ns()) for one in totals)
        return Steps(tables, parts, summary(totals, parts, self._walls), problems)


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
RECENT_STEPS = 4096
"""The most new steps that are added between two redraws."""


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


def ends(table: Steps) -> list[list[int]]:
    """Return of each line of `lines` its rank and its last step; -1 and the last of all where a line is of many."""
    kept = [[rank.rank, int(rank.step[-1])] for rank in table.ranks if len(rank)]
    return kept if len(kept) <= LINE_LIMIT else [[-1, max(last for _, last in kept)]]


def later(table: Steps, before: Sequence[Sequence[int]]) -> list[StepLine] | None:
    """Return a point for each line that got longer: the median of its new steps, at the last of them.

    None when lines came or went since.

    Args:
        table: The steps.
        before: What `ends` returned then.
    """
    now = ends(table)
    if [one[0] for one in before] != [one[0] for one in now]:
        return None
    kept = [rank for rank in table.ranks if len(rank)]
    if len(kept) > LINE_LIMIT:
        news = [(rank.step[-RECENT_STEPS:] > before[0][1], rank.wall_ns[-RECENT_STEPS:]) for rank in kept]
        walls = np.concatenate([walls[new] for new, walls in news])
        return [_point(f"median of {len(kept)} ranks", 0, now[0][1], walls)] if len(walls) else []
    found = list[StepLine]()
    for rank, (_, last) in zip(kept, before, strict=True):
        new = rank.step[-RECENT_STEPS:] > last
        if new.any():
            walls = rank.wall_ns[-RECENT_STEPS:][new]
            found.append(_point(f"rank {rank.rank}", rank.rank, int(rank.step[-1]), walls))
    return found


def newest(table: Steps, most: int) -> tuple[int, Floats] | None:
    """Return the last step that all ranks ended, and how long the newest ones took on their slowest ranks.

    None where there is none; ``most``: how many at most.
    """
    kept = [rank for rank in table.ranks if len(rank)]
    if not kept:
        return None
    last = min(int(rank.step[-1]) for rank in kept)
    tails = [slice(max(0, len(rank) - RECENT_STEPS), None) for rank in kept]
    chosen = [
        (rank.step[tail] <= last) & (rank.step[tail] > last - most) for rank, tail in zip(kept, tails, strict=True)
    ]
    walls = [rank.wall_ns[tail][new] for rank, tail, new in zip(kept, tails, chosen, strict=True)]
    alike = min(map(len, walls))
    found: Floats = np.max([wall[len(wall) - alike :] for wall in walls], axis=0).astype(np.float64)
    return (last, found) if alike else None


def _point(label: str, rank: int, step: int, walls: Ints) -> StepLine:
    values, at = walls.astype(np.float64), np.array([float(step)])
    median = np.array([float(np.median(values))])
    return StepLine(label, rank, at, median, values.min(keepdims=True), values.max(keepdims=True))


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
