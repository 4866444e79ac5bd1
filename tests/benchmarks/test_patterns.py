from __future__ import annotations

import pytest
import torch

from ringtune.benchmarks.commands import DTYPES
from ringtune.benchmarks.patterns import DTYPES as PATTERN_DTYPES
from ringtune.benchmarks.patterns import MAX_SUMS, Buffers, exact_sums, torch_dtype


def test_command_line_offers_the_dtypes_that_patterns_know() -> None:
    assert sorted(DTYPES) == sorted(PATTERN_DTYPES)


@pytest.mark.parametrize(
    ("dtype", "size", "sums"),
    [("float32", 2, 23), ("float16", 2, 10), ("bfloat16", 100, 1), ("uint8", 2, 7), ("float32", 1, MAX_SUMS)],
)
def test_exact_sums(dtype: str, size: int, sums: int) -> None:
    assert exact_sums(dtype, size) == sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_sums_in_place_stay_exact(dtype: str, size: int) -> None:
    ranks = [Buffers([7 * torch_dtype(dtype).itemsize, 8], dtype, rank, size) for rank in range(size)]
    for sums in range(1, exact_sums(dtype, size) + 1):
        for index in range(2):
            total = torch.stack([rank.tensors[index] for rank in ranks]).sum(dim=0).to(torch_dtype(dtype))
            for rank in ranks:
                rank.tensors[index].copy_(total)
        for rank in ranks:
            rank.check(sums, "simulated")


def test_a_wrong_element_is_named() -> None:
    buffers = Buffers([64], "float32", 0, 1)
    buffers.tensors[0][5] += 1
    with pytest.raises(ArithmeticError, match=r"gloo gave a wrong sum: tensor 0 of 16 elements, element 5: expected 3"):
        buffers.check(1, "gloo")


def test_a_missing_rank_is_seen() -> None:
    with pytest.raises(ArithmeticError):
        Buffers([64], "float32", 0, 2).check(1, "nobody")
