"""How well tensors were fused into batches. Only allreduces are: others run alone and are not counted here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtune.timeline.distinct import distinct, distinct_numbers
from ringtune.timeline.spans import SpanTable, Trace
from ringtune.timeline.vocabulary import KNOBS, RING_PREFIX, Stage


@dataclass(frozen=True)
class Fusion:
    """Allreduce batches of the lowest rank that recorded any (they are equal on all ranks).

    ``fill`` = mean bytes of a batch / size of the fusion buffer in force; None when the trace names no buffer size.
    """

    rank: int
    batches: int
    bytes: int
    batches_per_step: float | None
    tensors_per_batch: float
    bytes_per_batch: float
    fill: float | None


def fusion(trace: Trace) -> Fusion | None:
    """Return how well tensors were fused; None when no batch was recorded."""
    spans = trace.spans
    batches = spans.of_stage(Stage.COMMUNICATE)
    own = (batches.batch > 0) & ~batches.foreign()
    batches = batches.take(batches.name_mask(RING_PREFIX + "ALLREDUCE") & own)
    if not len(batches):
        return None
    rank = int(batches.rank.min())
    batches = batches.of_rank(rank)
    steps = len(distinct(batches.step[batches.step >= 0]))
    size = int(batches.bytes.sum())
    return Fusion(
        rank=rank,
        batches=len(batches),
        bytes=size,
        batches_per_step=len(batches) / steps if steps else None,
        tensors_per_batch=_tensors(trace.spans, rank, batches) / len(batches),
        bytes_per_batch=size / len(batches),
        fill=_fill(trace, batches),
    )


def _tensors(spans: SpanTable, rank: int, batches: SpanTable) -> int:
    """Tensors in these batches: what was negotiated, queued or copied for each, whichever stage knows most."""
    most, mine = np.ones(len(batches), dtype=np.int64), spans.rank == rank
    for stage in (Stage.NEGOTIATE, Stage.QUEUE, Stage.COPY_IN):
        ids, number = distinct_numbers(spans.batch[mine & spans.in_stage(stage)])
        if len(ids):
            counts = np.bincount(number)
            place = np.minimum(np.searchsorted(ids, batches.batch), len(ids) - 1)
            most = np.maximum(most, np.where(ids[place] == batches.batch, counts[place], 0))
    return int(most.sum())


def _fill(trace: Trace, batches: SpanTable) -> float | None:
    sizes = {version: size for version, size in fusion_sizes(trace).items() if size > 0}
    known = np.isin(batches.knobs_version, np.array(list(sizes), dtype=np.int32))
    if not known.any():
        return None
    buffers = np.array([sizes[version] for version in batches.knobs_version[known].tolist()], dtype=np.float64)
    return float((batches.bytes[known] / buffers).mean())


def fusion_sizes(trace: Trace) -> dict[int, int]:
    """Return the size of the fusion buffer in bytes under each version of the knobs the trace names."""
    sizes: dict[int, int] = {}
    for instant in trace.instants_named(KNOBS):
        version, size = instant.args.get("knobs_version"), instant.args.get("fusion_bytes")
        if isinstance(version, int) and isinstance(size, int):
            sizes.setdefault(version, size)
    return sizes
