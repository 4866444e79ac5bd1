"""Jobs whose step time is known for every setting: the tuner's synthetic ones, the cost model's, and measured grids.

A landscape is a job with the setting that it runs with when nothing is tuned. Its optimum is the least noise-free step
time on a grid over everything that is searched.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ringtune.benchmarks.predict.published import read_profile
from ringtune.errors import UsageError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.landscape import Flat, Job, Noise, SyntheticJob
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.replay import play
from ringtune.tuner.model.workload import Workload
from ringtune.tuner.space import CYCLE, FUSION

NOISES = {
    "1 %": Noise(0.01),
    "4 %": Noise(0.04),
    "13 %": Noise(0.13),
    "drift": Noise(0.04, drift=0.5, wander=0.01),
    "tails": Noise(0.04, tail=0.05),
}
"""Spread of the logarithm; drift: 50 % over 1000 steps; tails: one step in 20 takes up to four times as long."""

AS_MEASURED = "as measured"
"""The noise that a recorded grid itself had."""

GRID_POINTS = 25
"""Places of the optimum's grid on each scale."""

HOROVODS = Knobs(128 << 20, 1_000_000)
SMALL_AND_SLOW = Knobs(1 << 20, 20_000_000)

_SMALL = SyntheticJob(gradients=400, backward_ns=2e6, bytes=4 << 20, latency_ns=20e3)


@dataclass(frozen=True)
class Landscape:
    """A job, the setting it runs with otherwise, and the noise that was measured with it, if it was."""

    name: str
    job: Job
    default: Knobs
    measured_noise: Noise | None = None

    @property
    def noises(self) -> dict[str, Noise]:
        """The conditions of all sessions on a landscape."""
        return NOISES if self.measured_noise is None else {**NOISES, AS_MEASURED: self.measured_noise}

    @property
    def default_ns(self) -> float:
        """Length of a step under the default."""
        return self.job.step_ns(self.default)

    @cached_property
    def optimum_ns(self) -> float:
        """Least length of a step on the grid, or under the default if that is less."""
        places = [place / (GRID_POINTS - 1) for place in range(GRID_POINTS)]
        grid = (
            replace(self.default, fusion_bytes=FUSION.at(x), cycle_time_ns=CYCLE.at(y))
            for x, y in product(places, places)
        )
        return min(self.default_ns, *map(self.job.step_ns, grid))


class ModelJob:
    """A job as the cost model plays it: a profile's gradients on a cluster."""

    def __init__(self, work: Workload, cluster: Cluster) -> None:
        self.work, self.cluster = work, cluster
        self.bytes, self.gradients = work.bytes, len(work.gradients)
        self._known: dict[Knobs, float] = {}

    def step_ns(self, knobs: Knobs) -> float:
        """Return the duration of a step in nanoseconds."""
        if knobs not in self._known:
            self._known[knobs] = play(self.work, self.cluster, knobs).length_ns
        return self._known[knobs]


Times = tuple[tuple[float, ...], ...]
"""Step times in nanoseconds by row and column of a grid."""


@dataclass(frozen=True)
class GridJob:
    """A measured job: median step times on a grid, log-linear in between, the nearest edge outside.

    Attributes:
        bytes: Payload of a step.
        gradients: Its operations.
        fusion: Fusion sizes of the grid's rows, ascending.
        cycles: Cycle times of its columns, in nanoseconds, ascending.
        times: Step time in nanoseconds by row and column.
    """

    bytes: int
    gradients: int
    fusion: tuple[int, ...]
    cycles: tuple[int, ...]
    times: Times

    def step_ns(self, knobs: Knobs) -> float:
        """Return the duration of a step in nanoseconds."""
        row, down = _between(self.fusion, knobs.fusion_bytes)
        column, right = _between(self.cycles, knobs.cycle_time_ns)
        total = 0.0
        for i, weight_i in ((row, 1.0 - down), (row + 1, down)):
            for j, weight_j in ((column, 1.0 - right), (column + 1, right)):
                if weight_i * weight_j > 0.0:
                    total += weight_i * weight_j * math.log(self.times[i][j])
        return math.exp(total)


def _between(places: Sequence[int], value: int) -> tuple[int, float]:
    """Return the index of the place below a value, and how far it is from there to the next on a logarithmic scale."""
    clamped = min(max(value, places[0]), places[-1])
    index = min(bisect.bisect_right(places, clamped) - 1, max(len(places) - 2, 0))
    if clamped == places[index]:
        return index, 0.0
    return index, math.log(clamped / places[index]) / math.log(places[index + 1] / places[index])


def read_grid(path: Path) -> list[Landscape]:
    """Return the landscapes of a recorded grid, from the runtime's default and from a bad one.

    Raises:
        UsageError: The file is no such record.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        job = GridJob(
            record["bytes"],
            record["gradients"],
            tuple(record["fusion_bytes"]),
            tuple(record["cycle_time_ns"]),
            credible(record["step_ns"], record.get("passes_ns", [])),
        )
        name, noise = str(record["name"]), Noise(record["noise"]) if "noise" in record else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no measured grid: {error}") from None
    return [
        Landscape(f"measured {name}", job, DEFAULTS, noise),
        Landscape(f"measured {name}, bad", job, SMALL_AND_SLOW, noise),
    ]


def credible(times: Sequence[Sequence[float]], passes: Sequence[Sequence[Sequence[float]]]) -> Times:
    """Return measured step times as far from their mean as two passes over the grid agree that they are.

    Of noise alone a grid has fast and slow settings too, and its fastest one is luck. The passes' correlation says how
    much of the differences comes back (Spearman and Brown 1910, for the mean of two), and by so much times differ here
    (Kelley 1927: true scores are regressed to the mean). Without two passes they are taken as they are.
    """
    if len(passes) != 2:
        return tuple(tuple(row) for row in times)
    logs = np.log(np.array(times))
    first, second = (np.log(np.array(one)).reshape(-1) for one in passes)
    spread = float(np.std(first) * np.std(second))
    again = max(float(np.corrcoef(first, second)[0, 1]), 0.0) if spread > 0.0 else 0.0
    shrunk = logs.mean() + 2.0 * again / (1.0 + again) * (logs - logs.mean())
    return tuple(tuple(row) for row in np.exp(shrunk).tolist())


def synthetic() -> list[Landscape]:
    """The jobs of the tuner's own tests."""
    link = SyntheticJob(bandwidth=1e9, bytes=100 << 20, backward_ns=60e6, forward_ns=30e6)
    return [
        Landscape("flat", Flat(), HOROVODS),
        Landscape("compute-bound", SyntheticJob(), HOROVODS),
        Landscape("small gradients", _SMALL, HOROVODS),
        Landscape("link-bound", link, HOROVODS),
        Landscape("bad default", _SMALL, Knobs(256 << 10, 20_000_000)),
        Landscape("best default", _SMALL, Knobs(64 << 20, 80_000)),
    ]


def modelled(profiles: Path) -> list[Landscape]:
    """Three profiles on several networks as the model plays them; with a step schedule, and negotiated as Horovod does.

    Raises:
        UsageError: A profile is missing.
    """
    made = []
    for name in ("resnet50", "resnet101", "vgg16"):
        work = read_profile(profiles, name)
        for label, cluster in _NETWORKS.items():
            job = ModelJob(work, cluster)
            made.append(Landscape(f"{name}, {label}", job, DEFAULTS))
            made.append(Landscape(f"{name}, {label}, bad", job, SMALL_AND_SLOW))
            negotiated = Knobs(64 << 20, 5_000_000, step_schedule=0)
            made.append(Landscape(f"{name}, {label}, negotiated", job, negotiated))
    return made


def _network(gigabits: float, latency_ns: float) -> Link:
    return Link(latency_ns, gigabits * 1e9 / 8 * 0.95)


_NETWORKS = {
    "2 at 1 Gbit/s": Cluster(2, 1, network=_network(1, 40e3), batch_ns=30e3, contention=0.05),
    "4 at 10 Gbit/s": Cluster(4, 1, network=_network(10, 30e3), batch_ns=30e3, contention=0.1),
    "64 at 25 Gbit/s": Cluster(64, 4, network=_network(25, 20e3), batch_ns=30e3, contention=0.15),
    "512 at 100 Gbit/s": Cluster(512, 8, network=_network(100, 10e3), batch_ns=30e3, contention=0.15),
}
