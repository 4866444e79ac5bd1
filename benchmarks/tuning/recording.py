"""Recording a landscape: a job plays a profile's step under every setting of a grid, on this machine.

Settings are played in random order, twice; a point's time is the median over both passes of its steps' times, each that
of the slowest rank, without the first two after a change. Each pass is kept too: where the passes do not agree on which
settings are fast, the differences are the machine's noise (`landscapes.read_grid`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from typing import Any

from ringtune.benchmarks.netlab.testbed import Bed, Shape
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.model.workload import Workload
from ringtune.tuner.scoring import log_spread
from ringtune.tuner.space import CYCLE, FUSION

POINTS = 6
"""Places of the grid on each scale."""
PASSES, STEPS, SETTLE_STEPS = 2, 6, 2

Play = Callable[[Knobs, int], list[list[int]]]
"""Plays so many steps under a setting; returns the times of each rank's steps in nanoseconds."""


Table = list[list[float]]
"""By fusion size and cycle time."""


@dataclass(frozen=True)
class Grid:
    """What was measured.

    Attributes:
        step_ns: Median step times of all passes.
        passes_ns: Those of each pass.
        noise: Spread of the logarithms of single steps around their setting's median.
    """

    step_ns: Table
    passes_ns: list[Table]
    noise: float


def grid(play: Play, fusion: Sequence[int], cycles: Sequence[int]) -> Grid:
    """Measure step times by fusion size and cycle time."""
    points = list(product(range(len(fusion)), range(len(cycles))))
    passes: list[dict[tuple[int, int], list[int]]] = []
    order = random.Random(0)
    for _ in range(PASSES):
        order.shuffle(points)
        seen: dict[tuple[int, int], list[int]] = {}
        for row, column in points:
            knobs = Knobs.from_dict({"fusion_bytes": fusion[row], "cycle_time_ns": cycles[column]}, base=DEFAULTS)
            ranks = play(knobs, SETTLE_STEPS + STEPS)
            seen[row, column] = [max(step) for step in zip(*ranks, strict=True)][SETTLE_STEPS:]
        passes.append(seen)
    every = {point: [time for seen in passes for time in seen[point]] for point in points}

    def medians(of: Mapping[tuple[int, int], Sequence[int]]) -> Table:
        return [[float(median(of[row, column])) for column in range(len(cycles))] for row in range(len(fusion))]

    beside = [time / median(times) for times in every.values() for time in times]
    return Grid(medians(every), [medians(seen) for seen in passes], log_spread(beside))


def record(name: str, shape: Shape, rate: str, work: Workload) -> dict[str, Any]:
    """Return a landscape as `read_grid` reads it.

    Args:
        name: Its name.
        shape: Ranks and hosts, each in a network namespace of its own.
        rate: Of the hosts' links.
        work: The step.

    Raises:
        RingtuneError: The kernel refuses namespaces, or a rank failed.
    """
    fusion, cycles = ([scale.at(place / (POINTS - 1)) for place in range(POINTS)] for scale in (FUSION, CYCLE))
    with Bed(shape.hosts) as bed:
        bed.shape_links(rate)
        job = bed.job(shape)
        found = grid(lambda knobs, steps: job.play(work, knobs, steps), fusion, cycles)
    sizes = {"bytes": work.bytes, "gradients": len(work.gradients)}
    return {"name": name, **sizes, "fusion_bytes": fusion, "cycle_time_ns": cycles, **asdict(found)}
