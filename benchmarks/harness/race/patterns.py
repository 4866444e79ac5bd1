"""Data for exact sums: what each rank puts in, what must come out after repeated sums in place.

| symbol | meaning |
|---|---|
| n | number of ranks |
| i | index of an element |
| k | sums in place since the data was filled |
| u | unit: the smallest normal number of the dtype where n is a power of two and the dtype a float, else 1 |

Rank i mod n holds u (1 + (i div n) mod 3) at element i, all others hold 0. One sum gives s(i) = u (1 + (i div n) mod 3)
on every rank; each further sum in place multiplies by n, so after k sums the value is s(i) n^(k-1). As long as this is
a number that the dtype represents exactly, every result is compared for equality, and calls can be timed back to back
without refilling in between. Multiplying a float by a power of two is exact over its whole range of exponents, so
float32 allows 253 sums over two ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_LARGEST_SUM = 3
# Enough calls in a row for a steady state; at one rank nothing grows and there is no other limit.
MAX_SUMS = 256
# Elements of the tile that inputs and results repeat: long enough for NumPy's speed, short enough for the cache.
_TILE = 1 << 15


@dataclass(frozen=True)
class _Kind:
    """A dtype.

    Args:
        storage: NumPy's dtype of the memory; bfloat16, which NumPy lacks, is held as its bits.
        limit: the largest integer up to which all integers are exact.
        exponents: lowest and highest exponent of a normal number, None for integers.
    """

    storage: type[np.generic]
    limit: int
    exponents: tuple[int, int] | None = None


_KINDS = {
    "float32": _Kind(np.float32, 2**24, (-126, 127)),
    "float16": _Kind(np.float16, 2**11, (-14, 15)),
    "bfloat16": _Kind(np.uint16, 2**8, (-126, 127)),
    "float64": _Kind(np.float64, 2**53, (-1022, 1023)),
    "int32": _Kind(np.int32, 2**31 - 1),
    "int64": _Kind(np.int64, 2**63 - 1),
    "uint8": _Kind(np.uint8, 2**8 - 1),
}
DTYPES = tuple(_KINDS)


def item_bytes(dtype: str) -> int:
    """Returns the bytes of one element of one of `DTYPES`."""
    return int(np.dtype(_KINDS[dtype].storage).itemsize)


def exact_sums(dtype: str, size: int) -> int:
    """Returns how often data of `dtype` can be summed in place over `size` ranks and stay exact (1 to 256)."""
    kind = _KINDS[dtype]
    if size == 1:
        return MAX_SUMS
    if kind.exponents and _is_power_of_two(size):
        # The largest value is below 4 u n^(k-1).
        lowest, highest = kind.exponents
        return min(MAX_SUMS, 1 + (highest - 1 - lowest) // (size.bit_length() - 1))
    sums, value = 1, _LARGEST_SUM * size
    while value <= kind.limit and sums < MAX_SUMS:
        sums, value = sums + 1, value * size
    return sums


@dataclass(frozen=True)
class Task:
    """The tensors of a case as one rank sees them.

    Args:
        sizes_bytes: size of each tensor, multiples of the item size.
        dtype: one of `DTYPES`.
        rank: this rank.
        size: number of ranks.
        travels: another of `DTYPES` that the numbers must be exact in, since they are cast to it on their way; none.
        device: where the tensors lie, ``cpu`` or ``cuda``.
        collective: what is done with them.
    """

    sizes_bytes: Sequence[int]
    dtype: str
    rank: int
    size: int
    travels: str = ""
    device: str = "cpu"
    collective: str = "allreduce"

    @property
    def lengths(self) -> list[int]:
        """Elements of each tensor."""
        return [size_bytes // item_bytes(self.dtype) for size_bytes in self.sizes_bytes]

    @property
    def exact_in(self) -> str:
        """The dtype that limits the numbers."""
        return self.travels or self.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return item_bytes(self.dtype)

    @property
    def storage(self) -> type[np.generic]:
        """NumPy's dtype of the memory."""
        return _KINDS[self.dtype].storage


class Buffers:
    """The memory of a case: fills in the rank's own input and compares with the exact results.

    Args:
        task: what the tensors are.
        arrays: memory to use, one array per tensor; None to allocate ordinary memory.
    """

    def __init__(self, task: Task, arrays: Sequence[Array] | None = None) -> None:
        self.task = task
        self.arrays = list(arrays) if arrays else [np.empty(length, task.storage) for length in task.lengths]
        self.max_sums = exact_sums(task.exact_in, task.size)
        period = _LARGEST_SUM * task.size
        index = np.arange(period * -(-min(max(task.lengths), _TILE) // period), dtype=np.int64)
        self._steps = 1 + (index // task.size) % _LARGEST_SUM
        self._own = self._values(np.where(index % task.size == task.rank, self._steps, 0), 1)
        self._expected = (0, self._own)
        self.fill()

    def fill(self) -> None:
        """Puts this rank's input into all tensors."""
        for array in self.arrays:
            for begin in range(0, len(array), len(self._own)):
                part = array[begin : begin + len(self._own)]
                part[:] = self._own[: len(part)]

    def check(self, sums: int) -> None:
        """Checks all tensors after `sums` sums in place since `fill`.

        Raises:
            ArithmeticError: a value differs; the message names tensor, element and both values.
        """
        if self._expected[0] != sums:
            self._expected = (sums, self._values(self._steps, self.task.size ** (sums - 1)))
        tile = self._expected[1]
        for index, array in enumerate(self.arrays):
            for begin in range(0, len(array), len(tile)):
                part = array[begin : begin + len(tile)]
                want = tile[: len(part)]
                if not np.array_equal(part, want):
                    at = int(np.flatnonzero(part != want)[0])
                    raise ArithmeticError(
                        f"wrong sum: tensor {index} of {len(array)} elements, element {begin + at}: expected "
                        f"{self._shown(want[at])}, got {self._shown(part[at])} (after {sums} sums in place)"
                    )

    def _values(self, steps: Array, factor: int) -> Array:
        kind = _KINDS[self.task.dtype]
        if kind.exponents is None:
            return (steps * factor).astype(kind.storage)
        exponents = _KINDS[self.task.exact_in].exponents
        assert exponents is not None
        unit = 2.0 ** exponents[0] if _is_power_of_two(self.task.size) else 1.0
        values = steps * (unit * factor)
        if self.task.dtype == "bfloat16":
            # Exact: the values have no more than bfloat16's eight significant bits.
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(kind.storage)

    def _shown(self, value: Any) -> float | int:
        if self.task.dtype == "bfloat16":
            return float(np.array([int(value) << 16], np.uint32).view(np.float32)[0])
        shown = value.item()
        assert isinstance(shown, float | int)
        return shown


def _is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0
