"""Throughput and efficiency against ranks, from the scaling records of runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ringtune import layout
from ringtune.dashboard.data.files import Unreadable, integer, listing, read_document, text
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.units import plain
from ringtune.timeline.runs.records import ScalingPoint, ScalingRecord, scaling_record

RECORD_LIMIT = 200


@dataclass(frozen=True)
class ScalingSeries:
    """One scaling record: points by ranks in increasing order, at least one.

    Attributes:
        id: Names the series in addresses: ``<run id>/<file stem>``, with ``@<peer>`` for a peer beside it.
        run: Id of its run.
        label: Model and run, for legends.
        model: What was trained.
        unit: Unit of the rates, for example ``images/s``.
        facts: How it was measured, in words.
        created_unix_ns: When.
        points: Rates of the whole job and efficiencies (1 = ideal).
        alone: Rate of a rank alone, of which the ideal is made; None: the first point's share of a rank.
        predicted: What the cost model says, at the points' ranks and beyond.
        batch_size: Of a rank; 0 where it is not known.
        strong: The job keeps its work, not each rank.
        work: Samples of a rank's step (strong: of the job's), of which the rate is made; 1 where they are not known.
    """

    id: str
    run: str
    label: str
    model: str
    unit: str
    facts: str
    created_unix_ns: int
    points: tuple[ScalingPoint, ...]
    alone: float | None = None
    predicted: tuple[ScalingPoint, ...] = ()
    batch_size: int = 0
    strong: bool = False
    work: float = 1

    def ideal(self) -> tuple[list[int], list[float]]:
        """Return ranks and rates of perfect scaling."""
        base = self.points[0]
        per_rank = self.alone if self.alone is not None else base.rate.median / base.ranks
        ranks = sorted({point.ranks for point in (*self.points, *self.predicted)})
        return ranks, [per_rank * n for n in ranks]


@dataclass(frozen=True)
class ScalingTable:
    """All series found, and sentences about what could not be read."""

    series: tuple[ScalingSeries, ...]
    problems: tuple[str, ...] = ()

    def chosen(self, ids: Iterable[str]) -> ScalingTable:
        """Return the series with these ids; all of them when none is named."""
        wanted = set(ids)
        found = tuple(series for series in self.series if series.id in wanted)
        return ScalingTable(found, self.problems) if wanted else self


def data(runs: Iterable[RunInfo]) -> ScalingTable:
    """Return the scaling records of runs, in the order of the runs."""
    series, problems = [], []
    for run in runs:
        for path in listing(run.path, layout.scaling_folder(run.path), ".json")[:RECORD_LIMIT]:
            try:
                record = scaling_record(path.stem, read_document(run.path, path))
                series.append(_series(run, record))
                series += [_peer(series[-1], peer, points) for peer, points in record.peers.items()]
            except (Unreadable, ValueError, TypeError, OverflowError) as error:
                problems.append(f"{run.id}/scaling/{plain(path.name)}: {plain(error)}")
    return ScalingTable(tuple(series), tuple(problems))


def _usable(points: Iterable[ScalingPoint]) -> tuple[ScalingPoint, ...]:
    found = tuple(p for p in points if p.ranks > 0 and math.isfinite(p.rate.median))
    if not found:
        raise ValueError("holds no record with ranks and a rate")
    return found


def _peer(beside: ScalingSeries, peer: str, points: tuple[ScalingPoint, ...]) -> ScalingSeries:
    """Return what a peer reached in the same benchmark, as a series of its own."""
    name = plain(peer, 40)
    return replace(beside, id=f"{beside.id}@{name}", label=f"{beside.label} · {name}", points=_usable(points))


def _series(run: RunInfo, record: ScalingRecord) -> ScalingSeries:
    points = _usable(record.points)
    model = plain(record.model or record.benchmark)
    return ScalingSeries(
        id=f"{run.id}/{plain(record.name)}",
        run=run.id,
        label=f"{model} · {run.name}",
        model=model,
        unit=plain(record.unit, 40) or "samples/s",
        facts=_facts(record.data),
        created_unix_ns=integer(record.data.get("created_unix_ns")),
        points=points,
        batch_size=integer(record.data.get("batch_size")),
    )


def _facts(document: Mapping[str, Any]) -> str:
    parts = [text(document.get("benchmark"))]
    if batch := integer(document.get("batch_size")):
        parts.append(f"weak scaling, batch {batch} a rank")
    if image := integer(document.get("image_size")):
        parts.append(f"{image} × {image} pixels")
    parts.append(text(document.get("dtype")))
    return ", ".join(part for part in parts if part)
