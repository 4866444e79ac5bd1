"""What ranks do with NumPy arrays. Values are small integers, so that every sum is exact."""

from __future__ import annotations

from typing import Any

import numpy as np

import ringtune.numpy as hvd
from ringtune.errors import Mismatch, RingtuneError

Array = np.ndarray[Any, Any]
MAKE = {
    "c": lambda values: values,
    "fortran": np.asfortranarray,
    "strided": lambda values: np.repeat(values, 2, axis=-1)[..., ::2],
    "reversed": lambda values: values[::-1].copy()[::-1],
    "big-endian": lambda values: values.astype(values.dtype.newbyteorder(">")),
    "unaligned": lambda values: _unaligned(values),
}


def _unaligned(values: Array) -> Array:
    memory = np.empty(values.nbytes + 1, dtype=np.uint8)[1:]
    found = memory.view(values.dtype).reshape(values.shape)
    found[...] = values
    return found


def part(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    return ((np.arange(int(np.prod(shape))) + 2 * rank) % 9).reshape(shape).astype(dtype)


def reduced(dtype: str, op: str, shape: tuple[int, ...]) -> None:
    """Reduce in all four forms; the results are exact, inputs stay unless they are replaced."""
    if dtype == "bfloat16":
        import ml_dtypes  # noqa: F401 - makes the name known to NumPy
    parts = np.stack([part(rank, shape, "int64") for rank in range(hvd.size())])
    fold = {"Sum": parts.sum, "Min": parts.min, "Max": parts.max, "Product": parts.prod}
    expected = fold[op](axis=0).astype(dtype)
    number = getattr(hvd, op)
    own = part(hvd.rank(), shape, dtype)
    for result in (hvd.allreduce(own, op=number), hvd.synchronize(hvd.allreduce_async(own, op=number, name=f"a.{op}"))):
        assert result.dtype == own.dtype and result is not own and np.array_equal(result, expected)
    assert np.array_equal(own, part(hvd.rank(), shape, dtype))
    again = own.copy()
    assert hvd.allreduce_(own, op=number) is own and np.array_equal(own, expected)
    assert hvd.synchronize(hvd.allreduce_async_(again, op=number)) is again and np.array_equal(again, expected)


def moved(dtype: str) -> None:
    """Gather, broadcast and exchange values that use all bits of the dtype, also of Fortran order and odd sizes."""
    size, rank = hvd.size(), hvd.rank()
    items = np.dtype(dtype).itemsize

    def own(one: int, rows: int) -> Array:
        found = np.random.default_rng(one).integers(0, 120, (rows, 3 * items), dtype=np.uint8)
        return found.view(dtype)

    def same(result: Array, expected: Array) -> bool:
        return result.dtype == np.dtype(dtype) and result.tobytes() == expected.tobytes()

    assert same(hvd.allgather(own(rank, rank + 1)), np.concatenate([own(one, one + 1) for one in range(size)]))
    assert same(hvd.broadcast(own(rank, 5), size - 1), own(size - 1, 5))
    assert same(hvd.broadcast_(np.asfortranarray(own(rank, 5)), 0), own(0, 5))
    assert same(hvd.alltoall(own(rank, size)), np.concatenate([own(one, size)[rank : rank + 1] for one in range(size)]))
    for call in (hvd.allreduce, hvd.allreduce_, hvd.reducescatter, lambda one: hvd.grouped_allreduce([one])):
        try:
            call(own(rank, size))
        except RingtuneError as error:
            assert f"{dtype} is not reduced, only gathered, broadcast and exchanged" in str(error), error
        else:
            raise AssertionError(f"{dtype} was reduced")


def layouts(layout: str) -> None:
    """Every collective takes any strides and byte orders; in place it keeps them."""
    size, rank = hvd.size(), hvd.rank()
    total = sum(part(one, (size, 3), "float32") for one in range(size))
    own = MAKE[layout](part(rank, (size, 3), "float32"))
    assert np.array_equal(hvd.allreduce(own, op=hvd.Sum), total)
    assert np.array_equal(hvd.broadcast(own, size - 1), part(size - 1, (size, 3), "float32"))
    joined = np.concatenate([part(one, (size, 3), "float32") for one in range(size)])
    assert np.array_equal(hvd.allgather(own), joined)
    assert np.array_equal(hvd.alltoall(own), joined[rank::size])
    assert np.array_equal(hvd.reducescatter(own, op=hvd.Sum), total[rank : rank + 1])
    kept = own.dtype, own.strides
    assert hvd.allreduce_(own, op=hvd.Sum) is own and np.array_equal(own, total) and (own.dtype, own.strides) == kept
    other = MAKE[layout](part(rank, (size, 3), "float32"))
    assert hvd.broadcast_(other, 0) is other and np.array_equal(other, part(0, (size, 3), "float32"))


def shapes() -> None:
    """Scalars, empty arrays, averages of integers, factors, groups."""
    size, rank = hvd.size(), hvd.rank()
    scalar = hvd.allreduce(np.array(rank + 1.0), op=hvd.Sum)
    assert scalar.shape == () and scalar == size * (size + 1) / 2
    assert hvd.allreduce(np.empty((0, 4))).shape == (0, 4)
    assert hvd.allgather(np.empty((0, 4))).shape == (0, 4)
    rows = hvd.allgather(np.full((rank, 2), rank))
    assert np.array_equal(rows, np.concatenate([np.full((one, 2), one) for one in range(size)]))
    assert np.array_equal(hvd.allreduce(np.full(3, 2 * rank)), np.full(3, size - 1))
    doubled = hvd.allreduce(np.ones(3), op=hvd.Sum, prescale_factor=2, postscale_factor=0.5)
    assert np.array_equal(doubled, np.full(3, size))
    arrays = [np.full(count, float(rank)) for count in (1, 5, 0, 300)]
    for result in hvd.grouped_allreduce(arrays, op=hvd.Sum, name="group"):
        assert (result == size * (size - 1) / 2).all()
    assert hvd.grouped_allreduce_(arrays, op=hvd.Max)[1] is arrays[1] and (arrays[1] == size - 1).all()
    exchanged, received = hvd.alltoall(np.arange(size * (size + 1) // 2) + 100 * rank, splits=range(1, size + 1))
    assert len(exchanged) == size * (rank + 1) and received.tolist() == [rank + 1] * size
    hvd.barrier()
    handle = hvd.broadcast_async(np.ones(1), 0)
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle)[0] == 1


def refused() -> dict[str, str]:
    """Return what is said to calls that make no sense."""
    frozen = np.ones(3)
    frozen.flags.writeable = False
    cases: dict[str, Any] = {
        "list": lambda: hvd.allreduce([1, 2]),  # type: ignore[arg-type]
        "complex": lambda: hvd.allreduce(np.ones(2, dtype=complex)),
        "longdouble": lambda: hvd.broadcast(np.ones(2, dtype=np.longdouble), 0),
        "object": lambda: hvd.broadcast(np.array([None]), 0),
        "read-only": lambda: hvd.allreduce_(frozen),
        "scalar allgather": lambda: hvd.allgather(np.array(1.0)),
        "root": lambda: hvd.broadcast(np.ones(1), 99),
        "handle": lambda: hvd.synchronize(12345),
        "no arrays": lambda: hvd.grouped_allreduce([]),
        "min of reducescatter": lambda: hvd.reducescatter(np.ones(4), op=hvd.Min),
    }
    said = {}
    for name, case in cases.items():
        try:
            case()
            said[name] = ""
        except RingtuneError as error:
            said[name] = str(error)
    return said


def disagreeing() -> tuple[str, float]:
    """Return the error of ranks whose shapes differ, and a sum afterwards."""
    message = ""
    try:
        hvd.allreduce(np.ones(3 + hvd.rank()), name="shape")
    except Mismatch as error:
        message = str(error)
    return message, float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])


def joined_by_the_last() -> list[float]:
    """Let the last rank join at once; return what the others reduced meanwhile."""
    found = []
    if hvd.rank() != hvd.size() - 1:
        found = [float(hvd.allreduce(np.ones(2), op=hvd.Sum)[1]) for _ in range(3)]
    hvd.join()
    return [*found, float(hvd.allreduce(np.ones(2), op=hvd.Sum)[1])]


SCRIPT = """
import os, sys
import numpy as np
import ringtune.numpy as hvd

pair = hvd.ProcessSet([0, 1])
hvd.init(process_sets=[pair])
assert "torch" not in sys.modules
mine = hvd.allreduce(np.full(4, hvd.rank() + 1.0), op=hvd.Sum)
if pair.included():
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=pair)[0] == 2
assert hvd.reducescatter(np.ones((hvd.size(), 2)), op=hvd.Sum).shape == (1, 2)
hvd.shutdown()
hvd.init()
assert hvd.is_initialized() and hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
os.write(1, f"{hvd.rank()} {mine.tolist()}\\n".encode())
"""
