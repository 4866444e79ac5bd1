"""Watch: decides from the steps after a session whether the job is still the one that was tuned. Pure.

It has changed when its steps

* take longer, or shorter, than at first: in five blocks after each other, of two seconds and 50 steps at least, by more
  than 10 % and by more than five times what chance does to blocks of such noise, all in the same direction; or
* send something else: in three blocks of 50 steps mostly the same, and hardly ever what was tuned.

Chance: the trimmed mean of n steps whose logarithms spread by s has a standard error of s * sqrt(1.2 / n); the spread
is the larger one of the block and the level, which is that of the first two blocks. Slow wandering of a machine counts
once it has gone that far.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ringtune.timeline.units import bytes_text
from ringtune.tuner.feed import Sample
from ringtune.tuner.messages import percent
from ringtune.tuner.scoring import log_location, log_spread

_TRIMMED_VARIANCE = 1.2


@dataclass(frozen=True)
class WatchOptions:
    """What counts as a lasting change.

    Attributes:
        settle_steps: Steps discarded at first.
        block_steps: Steps of a block; the least where step times count.
        block_ns: Least time of a block of step times, in nanoseconds.
        most_steps: Most steps of such a block, whatever time they took.
        level_blocks: Blocks that give the level.
        blocks: Blocks after each other in which the step time must have changed.
        margin: Least change of the step time that counts, as a share.
        sigmas: Least change in standard errors.
        shape_blocks: Blocks after each other in which the gradients must have changed.
        tuned_share: Most steps of a block that may still send what was tuned when the gradients have changed.
    """

    settle_steps: int = 10
    block_steps: int = 50
    block_ns: int = 2_000_000_000
    most_steps: int = 1000
    level_blocks: int = 2
    blocks: int = 5
    margin: float = 0.10
    sigmas: float = 5.0
    shape_blocks: int = 3
    tuned_share: float = 0.1


@dataclass(frozen=True)
class Shape:
    """What a step sends: number of operations, and bytes a rank."""

    collectives: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.collectives} operations of {bytes_text(self.bytes)} together"


class Watch:
    """Watches one setting.

    Args:
        tuned: What a step sent while the session ran.
        knobs_version: Version of the knobs that stay; steps of earlier ones do not count.
        options: What counts as a change.
        rest_steps: Further steps that pass before it begins.
    """

    def __init__(
        self, tuned: Shape, knobs_version: int, options: WatchOptions | None = None, rest_steps: int = 0
    ) -> None:
        options = options or WatchOptions()
        self._knobs_version, self._resting = knobs_version, options.settle_steps + rest_steps
        self._shapes, self._times = _Shapes(tuned, options), _Times(options)

    def add(self, sample: Sample) -> str:
        """Process a step; returns a sentence on what has changed, usually an empty one."""
        if sample.knobs_version < self._knobs_version:
            return ""
        if self._resting > 0:
            self._resting -= 1
            return ""
        changed = self._shapes.add(Shape(sample.collectives, sample.bytes))
        return changed or self._times.add(sample.ns)


class _Shapes:
    """Compares what steps send, block by block."""

    def __init__(self, tuned: Shape, options: WatchOptions) -> None:
        self._tuned, self._options = tuned, options
        self._block: Counter[Shape] = Counter()
        self._seen: list[Shape] = []

    def add(self, shape: Shape) -> str:
        self._block[shape] += 1
        steps = self._block.total()
        if steps < self._options.block_steps:
            return ""
        usual = self._block.most_common(1)[0][0]
        tuned = self._block[self._tuned] / steps
        self._block.clear()
        if tuned > self._options.tuned_share or usual != (self._seen or [usual])[-1]:
            self._seen.clear()
        if tuned <= self._options.tuned_share:
            self._seen.append(usual)
        if len(self._seen) < self._options.shape_blocks:
            return ""
        return f"a step sends {usual}, it was tuned for {self._tuned}"


class _Times:
    """Compares the length of steps with the first ones, block by block."""

    def __init__(self, options: WatchOptions) -> None:
        self._options = options
        self._first: list[int] = []
        self._blocks = self._level_steps = 0
        self._level = self._spread = 0.0
        self._block: list[int] = []
        self._block_ns = 0
        self._changes: list[float] = []

    def add(self, ns: int) -> str:
        options = self._options
        self._block.append(max(ns, 1))
        self._block_ns += ns
        steps = len(self._block)
        if steps < options.block_steps or (steps < options.most_steps and self._block_ns < options.block_ns):
            return ""
        block, self._block, self._block_ns = self._block, [], 0
        self._blocks += 1
        if self._blocks <= options.level_blocks:
            self._begin(block)
            return ""
        return self._beside(block)

    def _begin(self, block: list[int]) -> None:
        self._first += block
        if self._blocks == self._options.level_blocks:
            self._level, self._spread = log_location(self._first), log_spread(self._first)
            self._level_steps, self._first = len(self._first), []

    def _beside(self, block: list[int]) -> str:
        change = log_location(block) - self._level
        spread = max(self._spread, log_spread(block))
        error = spread * math.sqrt(_TRIMMED_VARIANCE * (1.0 / len(block) + 1.0 / self._level_steps))
        clear = abs(change) > max(math.log1p(self._options.margin), self._options.sigmas * error)
        if not clear or (self._changes and (change > 0.0) != (self._changes[-1] > 0.0)):
            self._changes.clear()
        if clear:
            self._changes.append(change)
        if len(self._changes) < self._options.blocks:
            return ""
        least = min(self._changes, key=abs)
        return f"its steps take {percent(abs(math.expm1(least)))} {'longer' if least > 0.0 else 'less time'}"
