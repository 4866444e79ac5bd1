"""Synthetic jobs: how long a step takes under given knobs, with the noise of real machines.

Used to try the tuner on many jobs in seconds. Everything is seeded.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from ringtune.knobs import Knobs
from ringtune.stats import StepStats


class Job(Protocol):
    """A job whose noise-free step time depends on the knobs alone."""

    @property
    def bytes(self) -> int: ...

    @property
    def gradients(self) -> int: ...

    def step_ns(self, knobs: Knobs) -> float:
        """Return the duration of a step in nanoseconds."""


@dataclass(frozen=True)
class SyntheticJob:
    """A training job whose gradients become ready evenly through backward and are reduced in fused batches.

    Attributes:
        forward_ns: Time before the first gradient, in nanoseconds.
        backward_ns: Time from the first to the last gradient, in nanoseconds.
        gradients: Number of tensors.
        bytes: Their size together.
        bandwidth: Bytes reduced a second.
        latency_ns: Fixed cost of a batch, in nanoseconds.
        cycle_cost_ns: Computing time that one cycle of the runtime takes away, in nanoseconds.
    """

    forward_ns: float = 3e6
    backward_ns: float = 6e6
    gradients: int = 160
    bytes: int = 40 << 20
    bandwidth: float = 8e9
    latency_ns: float = 60e3
    cycle_cost_ns: float = 4e3

    def step_ns(self, knobs: Knobs) -> float:
        """Return the noise-free duration of a step in nanoseconds."""
        cycle = max(knobs.cycle_time_ns, 1)
        cycles = max(self.backward_ns / cycle, 1.0)
        filled = self.bytes / cycles
        by_size = math.ceil(self.bytes / max(min(knobs.fusion_bytes, self.bytes), 1))
        batches = min(self.gradients, max(by_size, min(cycles, self.gradients)))
        backward = self.backward_ns * (1.0 + self.cycle_cost_ns / cycle)
        busy = self.bytes / self.bandwidth * 1e9 + batches * self.latency_ns
        first = min(cycle, backward)
        last = cycle / 2.0 + min(filled, self.bytes) / self.bandwidth * 1e9 + self.latency_ns
        return self.forward_ns + max(backward + last, first + busy)


@dataclass(frozen=True)
class Flat:
    """A job whose step time does not depend on the knobs."""

    ns: float = 10e6
    bytes: int = 1 << 20
    gradients: int = 8

    def step_ns(self, knobs: Knobs) -> float:
        del knobs
        return self.ns


@dataclass(frozen=True)
class Noise:
    """What a machine adds to a step.

    Attributes:
        spread: Standard deviation of the logarithm of a step's time.
        tail: Probability that a step is hit by something else and takes up to four times as long.
        drift: Relative change of the machine's speed over 1000 steps.
        wander: Standard deviation of a slow random walk's change a step (of the logarithm).
    """

    spread: float = 0.01
    tail: float = 0.0
    drift: float = 0.0
    wander: float = 0.0


class SimulatedRun:
    """Plays a job step by step; knobs proposed take effect two steps later, as in the real runtime."""

    def __init__(self, job: Job, noise: Noise, knobs: Knobs, seed: int) -> None:
        self.job, self.noise, self.knobs = job, noise, knobs
        self.knobs_version = 0
        self.step = 0
        self.clock_ns = 0
        self._random = random.Random(seed)
        self._level = 0.0
        self._coming: tuple[int, Knobs] | None = None

    def propose(self, knobs: Knobs) -> int:
        """Take new knobs; return the version they will have."""
        self._coming = (self.step + 1, knobs)
        return self.knobs_version + 1

    def next_step(self) -> StepStats:
        """Run a step."""
        if self._coming is not None and self.step >= self._coming[0]:
            self.knobs, self._coming = self._coming[1], None
            self.knobs_version += 1
        self._level += self._random.gauss(0.0, self.noise.wander)
        factor = math.exp(self._level + self._random.gauss(0.0, self.noise.spread))
        factor *= 1.0 + self.noise.drift * self.step / 1000.0
        if self._random.random() < self.noise.tail:
            factor *= 1.0 + 3.0 * self._random.random()
        begin = self.clock_ns
        self.clock_ns += int(self.job.step_ns(self.knobs) * factor)
        stats = StepStats(
            self.step, self.knobs_version, begin, self.clock_ns, bytes=self.job.bytes, collectives=self.job.gradients
        )
        self.step += 1
        return stats
