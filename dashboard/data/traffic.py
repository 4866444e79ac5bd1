"""Batches by their size: how fast they moved, and how full the fusion buffer was.

Notation, per batch: S bytes; seen = mean length of its collective on the ranks, waiting for late ranks inside included;
moving = last begin to last end, the time in which all ranks took part. Bus bandwidth = S * factor / time, with the
factors of `ringtune.timeline.analysis.bandwidth`.

Columns: ``batch_*`` a sample of single batches; ``bin_*`` all batches by kind and size, four sizes an octave:
median of the bandwidth as seen, and 5th, 50th and 95th percentile of it while moving.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.analysis.bandwidth import bus_factor, kind_of
from ringtune.timeline.analysis.batches import numbered
from ringtune.timeline.analysis.fusion import fusion_sizes
from ringtune.timeline.spans import Ints, SpanTable, Trace
from ringtune.timeline.vocabulary import KINDS, RING_PREFIX, Stage

Floats = NDArray[np.float64]

SAMPLE = 1500
"""Most batches that are shown one by one."""
BINS_PER_OCTAVE = 4
FILL_BINS = 20
"""Bins of five per cent; one more holds batches larger than the buffer."""


@dataclass(frozen=True)
class _Batches:
    kind: NDArray[np.int64]
    bytes: Ints
    seen: Floats
    moving: Floats


def batch_columns(trace: Trace) -> dict[str, NDArray[Any]]:
    """Return the columns of a trace's batches; empty where nothing used the bus."""
    rows = _batches(numbered(trace.spans), trace.size)
    keep = np.linspace(0, len(rows.bytes) - 1, min(SAMPLE, len(rows.bytes))).astype(np.int64)
    sample = {name: getattr(rows, name)[keep] for name in ("kind", "bytes", "seen", "moving")}
    return {**{f"batch_{name}": column for name, column in sample.items()}, **_bins(rows)}


def _batches(spans: SpanTable, ranks: int) -> _Batches:
    """Bus bandwidth in bytes/s of every batch, as seen and while moving (where the clocks are exact enough)."""
    factors = np.array([bus_factor(kind, ranks) for kind in KINDS])
    kinds = np.array([KINDS.index(kind) if (kind := kind_of(name)) else -1 for name in spans.names], dtype=np.int64)
    runs = spans.take(spans.in_stage(Stage.COMMUNICATE) & (spans.batch > 0) & (spans.bytes > 0))
    runs = runs.take(kinds[runs.name] >= 0) if len(runs) else runs
    _, first, place = np.unique(runs.batch, return_index=True, return_inverse=True)
    begin, end = np.zeros(len(first), dtype=np.int64), np.zeros(len(first), dtype=np.int64)
    np.maximum.at(begin, place, runs.begin_ns)
    np.maximum.at(end, place, runs.end_ns)
    code, volume = kinds[runs.name[first]] if len(runs) else np.empty(0, dtype=np.int64), runs.bytes[first]
    moved = volume * factors[code] * 1e9
    mean = np.bincount(place, weights=runs.duration_ns, minlength=len(first)) / np.maximum(1, np.bincount(place))
    keep = (moved > 0) & (mean > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        seen, moving = moved / mean, np.where(end > begin, moved / (end - begin), np.nan)
    return _Batches(code[keep], volume[keep], seen[keep], moving[keep])


def _bins(rows: _Batches) -> dict[str, NDArray[Any]]:
    step = np.round(np.log2(np.maximum(rows.bytes, 1)) * BINS_PER_OCTAVE).astype(np.int64)
    keys, place, counts = np.unique(np.stack((rows.kind, step)), axis=1, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(place.reshape(-1), kind="stable"), np.cumsum(counts)[:-1])
    moving = np.array([_percentiles(rows.moving[group]) for group in groups if len(group)]).reshape(-1, 3)
    seen = np.array([float(np.median(rows.seen[group])) for group in groups if len(group)], dtype=np.float64)
    return {
        "bin_kind": keys[0],
        "bin_bytes": 2.0 ** (keys[1] / BINS_PER_OCTAVE),
        "bin_count": counts,
        "bin_seen": seen,
        **{f"bin_{name}": moving[:, at] for at, name in enumerate(("low", "median", "high"))},
    }


def _percentiles(values: Floats) -> list[float]:
    known = values[np.isfinite(values)]
    return [float(value) for value in np.percentile(known, (5, 50, 95))] if len(known) else [np.nan] * 3


def fill_histogram(trace: Trace) -> list[dict[str, Any]]:
    """Return, for every version of the knobs, the number of allreduce batches by how far they filled the buffer.

    Batches of the lowest rank that recorded any (they are equal on all ranks); ``counts`` are by share of the buffer.
    """
    runs = trace.spans.take(trace.spans.name_mask(RING_PREFIX + "ALLREDUCE"))
    runs = runs.take(runs.in_stage(Stage.COMMUNICATE) & (runs.batch > 0))
    if not len(runs):
        return []
    runs = runs.of_rank(int(runs.rank.min()))
    found = []
    for version, buffer in sorted(fusion_sizes(trace).items()):
        mine = runs.bytes[runs.knobs_version == version]
        if buffer > 0 and len(mine):
            share = np.ceil(mine / buffer * FILL_BINS).astype(np.int64) - 1
            counts = np.bincount(np.clip(share, 0, FILL_BINS), minlength=FILL_BINS + 1)
            mean = float((mine / buffer).mean())
            found.append({"knobs_version": version, "buffer_bytes": buffer, "counts": counts.tolist(), "mean": mean})
    return found
