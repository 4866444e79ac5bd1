"""Scaling records: what a scaling benchmark leaves behind for the dashboard and for `--json`.

The format is described in `timeline/README.md` (run folder, `scaling/<name>.json`). `rate` is that of the whole job;
`low` and `high` bound the median with 95 % confidence; efficiency is the rate per rank against the rate per rank of
the smallest rank count in the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringtune import layout
from ringtune.benchmarks.harness.statistics import median_interval, quartiles, ratio_interval
from ringtune.tuner.scoring import Interval


@dataclass
class RankCountSamples:
    """What was measured at one rank count.

    Args:
        ranks: ranks of the job.
        hosts: hosts they ran on.
        by_rank: rate of each rank, one sample per iteration, in the record's unit.
    """

    ranks: int
    hosts: int = 1
    by_rank: list[list[float]] = field(default_factory=list)

    def add(self, by_rank: Sequence[Sequence[float]]) -> None:
        """Adds the samples of one more job."""
        if not self.by_rank:
            self.by_rank = [[] for _ in by_rank]
        for samples, new in zip(self.by_rank, by_rank, strict=True):
            samples.extend(new)

    @property
    def rates(self) -> list[float]:
        """Rate of the whole job: it has finished an iteration when its slowest rank has."""
        return [self.ranks * min(rates) for rates in zip(*self.by_rank, strict=True)]

    @property
    def per_rank(self) -> list[float]:
        """Median rate of each rank."""
        return [quartiles(samples).median for samples in self.by_rank]

    @property
    def rate(self) -> Interval:
        """Median rate of the job with its interval."""
        return median_interval(self.rates)

    def efficiency(self, base: RankCountSamples) -> Interval:
        """Returns the rate per rank relative to `base` (1 = ideal scaling, and `base` itself by definition)."""
        if self is base:
            return Interval(1.0, 1.0, 1.0)
        return ratio_interval(self.rates, base.rates, factor=base.ranks / self.ranks)


@dataclass(frozen=True)
class Workload:
    """What a scaling record describes: the fields that must agree for two records to be comparable."""

    benchmark: str
    model: str
    batch_size: int
    image_size: int
    dtype: str
    unit: str


def scaling_record(
    workload: Workload,
    samples: Mapping[str, Sequence[RankCountSamples]],
    *,
    command: Sequence[str],
    created_unix_ns: int,
) -> dict[str, Any]:
    """Returns the scaling record as it is written to disk.

    Args:
        workload: what was measured.
        samples: per participant, one entry per rank count; ``ringtune`` is the subject, all others go to ``peers``.
        command: the command line that measured it.
        created_unix_ns: when.
    """
    return {
        "format": layout.FORMAT,
        "benchmark": workload.benchmark,
        "model": workload.model,
        "batch_size": workload.batch_size,
        "image_size": workload.image_size,
        "dtype": workload.dtype,
        "unit": workload.unit,
        "created_unix_ns": created_unix_ns,
        "command": list(command),
        "records": _rows(samples["ringtune"]),
        "peers": {name: {"records": _rows(rows)} for name, rows in samples.items() if name != "ringtune"},
    }


def _rows(rows: Sequence[RankCountSamples]) -> list[dict[str, Any]]:
    ordered = sorted(rows, key=lambda row: row.ranks)
    return [
        {
            "ranks": row.ranks,
            "hosts": row.hosts,
            "rate": {**row.rate.as_dict(), "samples": row.rates},
            "per_rank": row.per_rank,
            "efficiency": row.efficiency(ordered[0]).as_dict(),
        }
        for row in ordered
    ]
