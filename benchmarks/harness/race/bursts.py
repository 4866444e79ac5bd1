"""The one method by which every rank of every contender is timed.

A *burst* is a number of *loops*. A loop fills the buffers, calls once untimed so that the ranks stand in step, calls
several times back to back under one clock, and compares every element with the exact result. The time of a burst is
that of all its timed calls together; on a device it begins and ends when the device has done everything, by the host's
clock. Nothing is allocated in the timed part beyond what the call itself allocates, and
the garbage collector is off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ringtune.benchmarks.harness.race.patterns import Buffers, Task

Call = Callable[[], Any]


class Contest(Protocol):
    """The operation that a contender repeats.

    Attributes:
        call: the measured operation.
        max_calls: how often it may be called after `fill` and still be checked.
        settle: waits until a device has done all that was called; None where calls return when they are done.
    """

    call: Call
    max_calls: int
    settle: Callable[[], None] | None

    def fill(self) -> None:
        """Puts the input in place."""

    def check(self, calls: int) -> None:
        """Raises ArithmeticError unless everything is as it must be after `calls` calls."""


class SumContest:
    """Sums `buffers` in place over all ranks with `call`."""

    settle: Callable[[], None] | None = None

    def __init__(self, buffers: Buffers, call: Call) -> None:
        self.call = call
        self.max_calls = buffers.max_sums
        self.fill = buffers.fill
        self.check = buffers.check


class CopyContest:
    """Copies the tensors of `task` once, memory to memory: the least work of every reduction."""

    max_calls = 1 << 20
    settle: Callable[[], None] | None = None

    def __init__(self, task: Task) -> None:
        self._source = Buffers(task)
        self._target = Buffers(task)
        pairs = list(zip(self._target.arrays, self._source.arrays, strict=True))
        self.call = in_turn([partial(np.copyto, target, source) for target, source in pairs])

    def fill(self) -> None:
        for array in self._target.arrays:
            array[:] = 0

    def check(self, calls: int) -> None:
        for target, source in zip(self._target.arrays, self._source.arrays, strict=True):
            if not np.array_equal(target, source):
                raise ArithmeticError("numpy.copyto left a difference")


def in_turn(calls: Sequence[Call]) -> Call:
    """Returns a call that makes all of `calls`, itself without overhead when there is only one."""
    if len(calls) == 1:
        return calls[0]
    fixed = tuple(calls)

    def run() -> None:
        for call in fixed:
            call()

    return run


@dataclass(frozen=True)
class Burst:
    """The number of calls: `loops` times `calls` timed calls, after an untimed one each if there is a `lead_in`."""

    loops: int
    calls: int
    lead_in: bool = True


def run_burst(contest: Contest, burst: Burst) -> float:
    """Returns nanoseconds per timed call on this rank.

    Raises:
        ArithmeticError: a result was wrong.
    """
    total_ns = 0
    for _ in range(burst.loops):
        contest.fill()
        called = 0
        if burst.lead_in:
            contest.call()
            called = 1
        if contest.max_calls == 1:
            contest.fill()
            called = 0
        total_ns += time_calls(contest.call, burst.calls, contest.settle)
        contest.check(burst.calls + called)
    return total_ns / (burst.loops * burst.calls)


def time_calls(call: Call, count: int, settle: Callable[[], None] | None) -> int:
    """Returns nanoseconds of so many calls, and of what `settle` waits for (None: nothing)."""
    settle = settle or _nothing
    repeats = range(count)
    settle()
    begin_ns = time.perf_counter_ns()
    for _ in repeats:
        call()
    settle()
    return time.perf_counter_ns() - begin_ns


def _nothing() -> None:
    """Settles calls that return when they are done: nothing to wait for."""
