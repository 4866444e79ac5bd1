from __future__ import annotations

import numpy as np
import pytest

from ringtune.benchmarks.harness.race.patterns import DTYPES, MAX_SUMS, Array, Buffers, Task, exact_sums, item_bytes


@pytest.mark.parametrize(
    ("dtype", "size", "sums"),
    [
        ("float32", 2, 253),
        ("float32", 4, 127),
        ("float32", 3, 15),
        ("float16", 2, 29),
        ("bfloat16", 100, 1),
        ("float64", 2, MAX_SUMS),
        ("uint8", 2, 7),
        ("float32", 1, MAX_SUMS),
    ],
)
def test_exact_sums(dtype: str, size: int, sums: int) -> None:
    assert exact_sums(dtype, size) == sums


def total(arrays: list[Array], dtype: str) -> Array:
    """The sum as a contender forms it: in rank order, bfloat16 in float32."""
    if dtype != "bfloat16":
        return sum(arrays[1:], start=arrays[0])
    wide = [(array.astype(np.uint32) << 16).view(np.float32) for array in arrays]
    return (sum(wide[1:], start=wide[0]).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sums_in_place_stay_exact(dtype: str, size: int) -> None:
    ranks = [Buffers(Task([7 * item_bytes(dtype), 40 * item_bytes(dtype)], dtype, r, size)) for r in range(size)]
    for sums in range(1, exact_sums(dtype, size) + 1):
        for index in range(2):
            result = total([rank.arrays[index] for rank in ranks], dtype)
            for rank in ranks:
                rank.arrays[index][:] = result
        for rank in ranks:
            rank.check(sums)


def test_the_largest_value_is_finite_and_the_smallest_normal() -> None:
    buffers = Buffers(Task([1024], "float32", 0, 2))
    buffers.fill()
    assert min(buffers.arrays[0][buffers.arrays[0] > 0]) == np.finfo(np.float32).smallest_normal
    wanted = buffers._values(buffers._steps, 2 ** (exact_sums("float32", 2) - 1))
    assert np.isfinite(wanted).all()


@pytest.mark.parametrize(
    ("dtype", "message"), [("float32", "expected 2.0, got 3.0"), ("bfloat16", "expected 2.0, got 2.015625")]
)
def test_a_wrong_element_is_named(dtype: str, message: str) -> None:
    buffers = Buffers(Task([1 << 18], dtype, 2, 3))
    for array in buffers.arrays:
        array[:] = np.resize(buffers._values(buffers._steps, 1), len(array))
    buffers.arrays[0][60_006] += 1
    with pytest.raises(ArithmeticError, match=f"tensor 0 of .* element 60006: {message}"):
        buffers.check(1)


def test_a_missing_rank_is_seen() -> None:
    with pytest.raises(ArithmeticError):
        Buffers(Task([64], "float32", 0, 2)).check(1)
