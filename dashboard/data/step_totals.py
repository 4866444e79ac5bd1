"""Totals over the steps of a run, updated row by row: a new step costs the same after ten and after a million.

Notation: see `ringtune.dashboard.data.steps`. Means are sums divided by counts. Quantiles come from a histogram whose
buckets are at most 1/2048 of their values wide (`Histogram`), so they are right to within 0.05 per cent.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.runs.records import StepTable as RankSteps
from ringtune.timeline.spans import Ints

WARM_UP_STEPS = 1
"""Left out of statistics when there are more: the first step counts from init and holds the start of the job."""

LATE_FROM = 0.02
"""A rank that computes at least this share longer than the median rank is called the slowest, or late."""

_SUMS = ("wall", "blocked", "overlapped", "negotiate", "communicate", "copy", "bytes", "collectives", "batches")


@dataclass(frozen=True)
class Breakdown:
    """Where one rank's time went, as means over its steps in nanoseconds; see the notation.

    ``alone_ns + overlapped_ns + exposed_ns + waiting_ns == wall_ns``. ``negotiate_ns`` is summed over operations that
    overlap, so it may exceed the step.
    """

    rank: int
    steps: int
    wall_ns: float
    alone_ns: float
    overlapped_ns: float
    exposed_ns: float
    waiting_ns: float
    negotiate_ns: float
    communicate_ns: float
    copy_ns: float

    @property
    def blocked_ns(self) -> float:
        """Time the training loop was blocked."""
        return self.exposed_ns + self.waiting_ns


@dataclass(frozen=True)
class StepSummary:
    """The run's steps in a few numbers; warm-up left out of all but ``steps``.

    Attributes:
        steps: Steps that the furthest rank has ended.
        median_ns, low_ns, high_ns: Median and quartiles of the step time over all ranks.
        blocked_share: Blocked time as a share of the step time.
        exposed_share: Its part that communication takes, as a share of the step time.
        waiting_share: Its part for a late rank, as a share of the step time.
        overlapped_share: Share of the communication that ran beside computation; NaN without communication.
        bytes_per_step: Reduced payload of a rank in a step.
        batches_per_step: Batches into which operations were fused.
        latest_rank: Rank with the most computation (wall - blocked), for which others wait; -1 for a single rank.
        latest_lead: How much more than the median rank's, as a share.
    """

    steps: int
    median_ns: float
    low_ns: float
    high_ns: float
    blocked_share: float
    exposed_share: float
    waiting_share: float
    overlapped_share: float
    bytes_per_step: float
    batches_per_step: float
    latest_rank: int
    latest_lead: float


class Histogram:
    """Counts of durations in buckets of equal relative width; whole nanoseconds below 4,096 have one each.

    A bucket gives the mean of what is in it, so a quantile errs by less than the bucket's width, 1/2048 of the value.
    """

    _FINE = 11
    """Each doubling has 2 to the power of this many buckets."""
    _TOP_BITS = 62

    def __init__(self) -> None:
        size = (self._TOP_BITS - self._FINE + 1) << self._FINE
        self._count: Ints = np.zeros(size, dtype=np.int64)
        self._sum: NDArray[np.float64] = np.zeros(size)
        # No duration was counted outside these buckets.
        self._first, self._last = size, -1

    def add(self, values: Ints, sign: int = 1) -> None:
        """Count durations in nanoseconds (below 0 as 0), or take such away again with ``sign`` -1."""
        if not len(values):
            return
        values = np.maximum(values, 0)
        bucket = self._bucket(values)
        self._first, self._last = min(self._first, int(bucket.min())), max(self._last, int(bucket.max()))
        np.add.at(self._count, bucket, sign)
        np.add.at(self._sum, bucket, sign * values.astype(np.float64))

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles, between two durations on the straight line (numpy's default); needs one at least."""
        filled = self._first + np.flatnonzero(self._count[self._first : self._last + 1])
        through = np.cumsum(self._count[filled])
        place = np.asarray(shares) * (int(through[-1]) - 1)
        below = np.floor(place)
        low, high = (self._sum[at] / self._count[at] for at in (
            filled[np.searchsorted(through, np.minimum(nth, through[-1] - 1), "right")] for nth in (below, below + 1)
        ))  # fmt: skip
        found: list[float] = (low + (place - below) * (high - low)).tolist()
        return found

    def _bucket(self, values: Ints) -> Ints:
        # frexp is exact here: of values beyond 2^53 it rounds bits that no bucket distinguishes.
        _, bits = np.frexp(values.astype(np.float64))
        shift = np.maximum(bits.astype(np.int64) - 1 - self._FINE, 0)
        found: Ints = (shift << self._FINE) + (values >> shift)
        return found


class RankTotals:
    """Sums over the steps of one rank, warm-up left out as soon as there are others."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.last_step = -1
        self.count = 0
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self._warming = True

    def add(self, rows: RankSteps, walls: Histogram, before: RankSteps) -> None:
        """Take new rows; ``before`` are those taken so far, looked at only when the warm-up ends."""
        if not len(rows):
            return
        self.last_step = max(self.last_step, int(rows.step.max()))
        steady = rows.step >= WARM_UP_STEPS
        if self._warming and steady.any():
            walls.add(before.wall_ns, sign=-1)
            self.count, self._sums, self._warming = 0, dict.fromkeys(_SUMS, 0.0), False
        keep = slice(None) if self._warming else steady
        wall, wait = rows.wall_ns[keep], rows.wait_ns[keep]
        busy = (rows.communicate_ns + rows.copy_ns)[keep]
        walls.add(wall)
        self.count += len(wall)
        columns = {
            "wall": wall,
            "blocked": np.minimum(wait, wall),
            "overlapped": np.clip(busy - wait, 0, np.maximum(wall - wait, 0)),
            **{name: getattr(rows, f"{name}_ns")[keep] for name in ("negotiate", "communicate", "copy")},
            **{name: getattr(rows, name)[keep] for name in ("bytes", "collectives", "batches")},
        }
        for name, column in columns.items():
            self._sums[name] += float(column.sum(dtype=np.float64))

    def mean(self, name: str) -> float:
        """Return the mean of one of the sums over the steps counted."""
        return self._sums[name] / self.count

    def breakdown(self, least_ns: float) -> Breakdown:
        """Return where the rank's time went.

        Args:
            least_ns: How long the rank was blocked on average that was blocked least.
        """
        wall, blocked, overlapped = (self.mean(name) for name in ("wall", "blocked", "overlapped"))
        rest = {f"{name}_ns": self.mean(name) for name in ("negotiate", "communicate", "copy")}
        exposed, alone = min(blocked, least_ns), wall - blocked - overlapped
        return Breakdown(self.rank, self.count, wall, alone, overlapped, exposed, blocked - exposed, **rest)


def common_steps(steps: Sequence[Ints]) -> Ints:
    """Return the numbers that all ranks have of their steps, in order; none without ranks."""
    return functools.reduce(np.intersect1d, steps) if steps else np.zeros(0, dtype=np.int64)


class LeastBlocked:
    """How long the rank was blocked that was blocked least, on average over steps; warm-up is left out.

    Each step is taken once, when all ranks have ended it.
    """

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] = ()
        self._through = WARM_UP_STEPS - 1
        self._sum, self._count = 0.0, 0

    def take(self, logs: Sequence[RankSteps]) -> None:
        """Take the steps that all ranks have ended since; a rank that came makes all steps new."""
        ranks = tuple(log.rank for log in logs)
        if ranks != self._ranks:
            self._ranks, self._through, self._sum, self._count = ranks, WARM_UP_STEPS - 1, 0.0, 0
        last = min((int(log.step[-1]) for log in logs if len(log)), default=-1)
        if last <= self._through:
            return
        parts = [slice(*np.searchsorted(log.step, (self._through, last), "right")) for log in logs]
        common = common_steps([log.step[part] for log, part in zip(logs, parts, strict=True)])
        if len(common):
            rows = [np.searchsorted(log.step, common) for log in logs]
            waits = [np.minimum(log.wait_ns[row], log.wall_ns[row]) for log, row in zip(logs, rows, strict=True)]
            self._sum += float(np.min(waits, axis=0).sum(dtype=np.float64))
            self._count += len(common)
        self._through = last

    def mean_ns(self) -> float:
        """Return the mean; infinite before the first step."""
        return self._sum / self._count if self._count else float("inf")


def summary(ranks: Sequence[RankTotals], parts: Sequence[Breakdown], walls: Histogram) -> StepSummary | None:
    """Return the summary of ranks that have steps, with their breakdowns and step times; None without any."""
    if not ranks:
        return None
    low, median, high = walls.quantiles((0.25, 0.5, 0.75))
    wall = sum(part.wall_ns for part in parts)
    blocked, exposed = sum(part.blocked_ns for part in parts), sum(part.exposed_ns for part in parts)
    busy = sum(part.communicate_ns + part.copy_ns for part in parts)
    work = np.array([part.wall_ns - part.blocked_ns for part in parts])
    typical = float(np.median(work))
    return StepSummary(
        steps=max(rank.last_step for rank in ranks) + 1,
        median_ns=median,
        low_ns=low,
        high_ns=high,
        blocked_share=blocked / wall if wall > 0 else float("nan"),
        exposed_share=exposed / wall if wall > 0 else float("nan"),
        waiting_share=(blocked - exposed) / wall if wall > 0 else float("nan"),
        overlapped_share=sum(part.overlapped_ns for part in parts) / busy if busy > 0 else float("nan"),
        bytes_per_step=float(np.mean([rank.mean("bytes") for rank in ranks])),
        batches_per_step=float(np.mean([rank.mean("batches") for rank in ranks])),
        latest_rank=parts[int(work.argmax())].rank if len(parts) > 1 else -1,
        latest_lead=float(work.max()) / typical - 1 if typical > 0 else 0.0,
    )
