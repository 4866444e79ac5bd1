"""Data of collectives other than allreduce: what each rank gives, what it must have afterwards.

Rank r gives (i + 3 r) mod 5 at element i, so that values show their sender, and sums over up to 50 ranks are exact in
every dtype. The input of a rank is never overwritten, so calls can be repeated; its output is cleared before each loop
of a burst.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ringtune.benchmarks.harness.race.bursts import Call
from ringtune.benchmarks.harness.race.patterns import Array, Task

COLLECTIVES = ("broadcast", "allgather", "reducescatter", "alltoall", "barrier")
_STEPS = 5
_SHIFT = 3
MAX_RANKS = 50


class Exchange:
    """The memory of a case on one rank, for a tensor of L elements on n ranks.

    | collective | given | received |
    |---|---|---|
    | broadcast | L, overwritten by what the first rank gives | the same memory |
    | allgather | L / n | L |
    | reducescatter | L | L / n |
    | alltoall | L | L |
    | barrier | 0 | 0 |

    Args:
        task: one tensor, and which collective.

    Attributes:
        given: what the rank gives.
        received: where the result goes.
        expected: what it must be.

    Raises:
        ValueError: more ranks than sums are exact for.
    """

    def __init__(self, task: Task) -> None:
        if task.size > MAX_RANKS:
            raise ValueError(f"{task.size} ranks: sums are exact for {MAX_RANKS} at most")
        self.task = task
        (length,) = task.lengths
        part = length // task.size
        own = slice(task.rank * part, (task.rank + 1) * part)
        parts = {"allgather": part, "barrier": 0}
        self._own = self._values(self._numbers(task.rank, parts.get(task.collective, length)))
        self.given = self._own.copy()
        everyone = range(task.size)
        if task.collective == "broadcast":
            self.received = self.given
            self.expected = self._values(self._numbers(0, length))
            if task.rank > 0:
                self._own = np.zeros_like(self._own)
            return
        if task.collective == "allgather":
            self.expected = np.concatenate([self._values(self._numbers(rank, part)) for rank in everyone])
        elif task.collective == "reducescatter":
            total = sum((self._numbers(rank, length)[own] for rank in everyone), np.zeros(part, np.int64))
            self.expected = self._values(total)
        elif task.collective == "alltoall":
            self.expected = np.concatenate([self._values(self._numbers(rank, length)[own]) for rank in everyone])
        else:
            self.expected = np.empty(0, task.storage)
        self.received = np.zeros_like(self.expected)

    def fill(self) -> None:
        """Puts this rank's part in place and forgets what was received."""
        self.received[:] = 0
        self.given[:] = self._own

    def check(self, found: Array) -> None:
        """Checks a result, in the storage of the task's dtype.

        Raises:
            ArithmeticError: it differs; the message names the element.
        """
        if found.shape != self.expected.shape:
            raise ArithmeticError(f"wrong {self.task.collective}: {found.shape} elements, not {self.expected.shape}")
        if not np.array_equal(found, self.expected):
            at = int(np.flatnonzero(found != self.expected)[0])
            raise ArithmeticError(
                f"wrong {self.task.collective}: element {at} of {len(found)} is {found[at]}, not {self.expected[at]}"
            )

    @staticmethod
    def _numbers(rank: int, length: int) -> Array:
        return (np.arange(length, dtype=np.int64) + _SHIFT * rank) % _STEPS

    def _values(self, numbers: Array) -> Array:
        if self.task.dtype == "bfloat16":
            return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return numbers.astype(self.task.storage)


class ExchangeContest:
    """Does `call` again and again, which writes into the memory of `exchange`."""

    max_calls = 1 << 20
    settle: Callable[[], None] | None = None

    def __init__(self, exchange: Exchange, call: Call) -> None:
        self.call = call
        self.fill = exchange.fill
        self._exchange = exchange

    def check(self, calls: int) -> None:
        """Raises ArithmeticError unless everything is as it must be after `calls` calls."""
        del calls
        self._exchange.check(self._exchange.received)
