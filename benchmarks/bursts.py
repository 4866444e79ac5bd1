"""The one method by which all contenders of the micro benchmarks are timed.

A *burst* is: fill the buffers, let all ranks meet (on a neutral channel), call once untimed so that the ranks stand in
step, then call several times back to back under one clock, then compare every element with the exact result. Bursts
of all contenders alternate within the same processes, in rotating order, so that a slow spell of the machine hits all
of them. A sample is the time per call of one burst on its slowest rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch.distributed as dist

from ringtune.benchmarks.contenders import Contender
from ringtune.benchmarks.control import slowest
from ringtune.benchmarks.patterns import Buffers

# Long enough that clock and scheduler noise are small, short enough that contenders alternate often.
BURST_NS = 20_000_000
WARMUP_BURSTS = 3


@dataclass(frozen=True)
class Budget:
    """How long a case may take: seconds per contender, and bounds for the number of samples."""

    seconds: float = 1.0
    min_rounds: int = 7
    max_rounds: int = 400


@dataclass(frozen=True)
class Race:
    """A case: who runs on which buffers, and how many sums in place stay exact."""

    contenders: Mapping[str, Contender]
    buffers: Buffers
    max_sums: int

    def run(self, budget: Budget, on_round: Callable[[int, int], None]) -> dict[str, list[float]]:
        """Returns nanoseconds per call, one sample per round, per contender; the same on every rank.

        Args:
            budget: how long to measure.
            on_round: called after each round with its number (from 1) and the number of rounds.

        Raises:
            ArithmeticError: a contender gave a wrong result.
        """
        calls = {name: self._calibrate(name) for name in self.contenders}
        rounds = _rounds(calls, budget)
        samples: dict[str, list[float]] = {name: [] for name in self.contenders}
        names = list(self.contenders)
        for index in range(rounds):
            turn = index % len(names)
            for name in names[turn:] + names[:turn]:
                samples[name].append(self._burst(name, calls[name].count))
            on_round(index + 1, rounds)
        return {name: slowest(values) for name, values in samples.items()}

    def _calibrate(self, name: str) -> _Calls:
        """Warms `name` up and returns how many calls fill a burst; the same on every rank."""
        estimates = [self._burst(name, 1) for _ in range(WARMUP_BURSTS)]
        estimate_ns = min(slowest(estimates))
        return _Calls(calls_per_burst(estimate_ns, self.max_sums), estimate_ns)

    def _burst(self, name: str, count: int) -> float:
        """Returns nanoseconds per call of one burst of `count` timed calls on this rank."""
        reduce = self.contenders[name].reduce
        self.buffers.fill()
        dist.barrier()
        lead_in = 1 if self.max_sums > 1 else 0
        if lead_in:
            reduce()
        begin_ns = time.perf_counter_ns()
        for _ in range(count):
            reduce()
        duration_ns = time.perf_counter_ns() - begin_ns
        self.buffers.check(count + lead_in, name)
        return duration_ns / count


@dataclass(frozen=True)
class _Calls:
    count: int
    estimate_ns: float


def calls_per_burst(estimate_ns: float, max_sums: int) -> int:
    """Returns how many timed calls of `estimate_ns` make a burst, leaving room for the untimed one."""
    return max(1, min(int(BURST_NS / max(estimate_ns, 1.0)), max_sums - 1))


def _rounds(calls: Mapping[str, _Calls], budget: Budget) -> int:
    round_ns = sum(call.count * call.estimate_ns for call in calls.values())
    wanted = int(budget.seconds * 1e9 * len(calls) / round_ns)
    return max(budget.min_rounds, min(wanted, budget.max_rounds))
