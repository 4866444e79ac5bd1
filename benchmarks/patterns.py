"""Data for exact sums: what each rank puts in, what must come out after repeated sums in place.

| symbol | meaning |
|---|---|
| n | number of ranks |
| i | index of an element |
| k | sums in place since the data was filled |

Rank i mod n holds 1 + (i div n) mod 3 at element i, all others hold 0. One sum gives s(i) = 1 + (i div n) mod 3 on
every rank; each further sum in place multiplies by n, so after k sums the value is s(i) n^(k-1). As long as this is an
integer that the dtype represents exactly, every result is compared for equality, and calls can be timed back to back
without refilling in between.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_LARGEST_SUM = 3
# The largest integer up to which all integers are exact.
_EXACT_LIMIT = {
    "float16": 2**11,
    "bfloat16": 2**8,
    "float32": 2**24,
    "float64": 2**53,
    "int32": 2**31 - 1,
    "int64": 2**63 - 1,
    "uint8": 2**8 - 1,
}
DTYPES = tuple(_EXACT_LIMIT)
# Enough calls in a row for a steady state; at one rank nothing grows and there is no other limit.
MAX_SUMS = 64


def torch_dtype(name: str) -> torch.dtype:
    """Returns the torch dtype that one of `DTYPES` names."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def exact_sums(dtype: str, size: int) -> int:
    """Returns how often data of `dtype` can be summed in place over `size` ranks and stay exact (1 to 64)."""
    sums, value = 1, _LARGEST_SUM * size
    while value <= _EXACT_LIMIT[dtype] and sums < MAX_SUMS:
        sums, value = sums + 1, value * size
    return sums


class Buffers:
    """The tensors of a case, with the rank's own input and the exact results.

    Args:
        sizes_bytes: size of each tensor, multiples of the item size.
        dtype: one of `DTYPES`.
        rank: this rank.
        size: number of ranks.
    """

    def __init__(self, sizes_bytes: Sequence[int], dtype: str, rank: int, size: int) -> None:
        self.size = size
        kind = torch_dtype(dtype)
        lengths = [size_bytes // kind.itemsize for size_bytes in sizes_bytes]
        self._sum, self._own = _pattern(max(lengths), kind, rank, size)
        self.tensors = [torch.empty(length, dtype=kind) for length in lengths]
        self.fill()

    def fill(self) -> None:
        """Puts this rank's input into all tensors."""
        for tensor in self.tensors:
            tensor.copy_(self._own[: tensor.numel()])

    def check(self, sums: int, contender: str) -> None:
        """Checks all tensors after `sums` sums in place since `fill`.

        Raises:
            ArithmeticError: a value differs; the message names contender, tensor, element and both values.
        """
        expected = self._sum * self.size ** (sums - 1)
        for index, tensor in enumerate(self.tensors):
            want = expected[: tensor.numel()]
            if not torch.equal(tensor, want):
                at = int((tensor != want).nonzero()[0, 0])
                raise ArithmeticError(
                    f"{contender} gave a wrong sum: tensor {index} of {tensor.numel()} elements, element {at}: "
                    f"expected {want[at].item()}, got {tensor[at].item()} (after {sums} sums in place)"
                )


def _pattern(length: int, dtype: torch.dtype, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    index = torch.arange(length, dtype=torch.int32)
    total = 1 + (index // size) % _LARGEST_SUM
    own = torch.where(index % size == rank, total, 0)
    return total.to(dtype), own.to(dtype)
