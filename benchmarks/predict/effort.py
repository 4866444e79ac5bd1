"""The processor's work for bytes between hosts, where all hosts are parts of this machine.

Two ranks on hosts of their own reduce single tensors over links that are no limit, so the time is the work of the
cores, one for each rank. Sizes matter, since large batches leave the caches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ringtune.benchmarks.netlab.testbed import Bed, Shape
from ringtune.knobs import DEFAULTS
from ringtune.tuner.model.cluster import Effort
from ringtune.tuner.model.workload import Gradient, Workload

UNLIMITED = "100gbit"
"""Many times the rate of a core; still shaped, since the shaper's work is part of the cost of a byte."""

SIZES = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
ROUNDS, SETTLE_STEPS = 3, 2

_TINY_BYTES = 4 << 10
_BYTES, _MOST_STEPS = 400 << 20, 60
"""Bytes of a round, so that it takes some tenths of a second."""


def measure_effort(bed: Bed, shape: Shape, rate: str = UNLIMITED) -> Effort:
    """Time of a byte that a rank sends and receives, by size of the tensor, without what a small one takes.

    Args:
        bed: With the hosts.
        shape: Two hosts of one rank, where each shall have a core for itself.
        rate: Of the links.

    Raises:
        JobLost: a rank failed.
    """
    bed.shape_links(rate)
    job = bed.job(shape)
    seen: dict[int, list[float]] = {size: [] for size in (_TINY_BYTES, *SIZES)}
    for _ in range(ROUNDS):
        for size, times in seen.items():
            steps = SETTLE_STEPS + max(3, min(_MOST_STEPS, _BYTES // size))
            played = job.play(Workload(f"effort-{size}", (Gradient(size, 0.0),), 0.0), DEFAULTS, steps)
            times.append(float(np.median(np.array(played).max(axis=0)[SETTLE_STEPS:])))
    tiny, *others = (float(np.median(times)) for times in seen.values())
    moved = 2 * (shape.ranks - 1) / shape.ranks
    return tuple((float(size), (ns - tiny) / (moved * size)) for size, ns in zip(SIZES, others, strict=True))


def keep_effort(file: Path, effort: Effort) -> None:
    """Add one measurement to a file of JSON lines."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"bytes_and_ns_of_a_byte": effort}) + "\n")


def kept_efforts(file: Path) -> list[Effort]:
    """Return what was kept; nothing where nothing was."""
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [tuple((size, ns) for size, ns in json.loads(line)["bytes_and_ns_of_a_byte"]) for line in lines]


def typical(efforts: Sequence[Effort]) -> Effort:
    """Return the median by size: one measurement may fall into a slow spell of the machine, or a fast one."""
    return tuple((same[0][0], float(np.median([ns for _, ns in same]))) for same in zip(*efforts, strict=True))
