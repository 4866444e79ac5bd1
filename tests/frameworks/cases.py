"""What the ranks of every front end do. Values are small integers, so that every result is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ringtune.errors import RingtuneError
from tests.frameworks.fronts import Front, front_of, numpy_dtype

Array = np.ndarray[Any, Any]
FOLDS = {"Sum": np.add, "Min": np.minimum, "Max": np.maximum, "Product": np.multiply}


def open_session(front: str) -> tuple[int, int]:
    hvd = front_of(front).hvd
    hvd.init()
    return hvd.rank(), hvd.size()


def part(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Return what a rank contributes."""
    count = int(np.prod(shape))
    return ((np.arange(count) + 2 * rank) % 5 + 1).reshape(shape).astype(numpy_dtype(dtype))


def parts(size: int, shape: tuple[int, ...], dtype: str) -> list[Array]:
    return [part(rank, shape, dtype) for rank in range(size)]


def same(ends: Front, result: Any, expected: Array, what: str = "") -> None:
    found = ends.values(result)
    assert found.dtype == expected.dtype and found.shape == expected.shape, (what, found.dtype, found.shape)
    assert np.array_equal(found, expected), (what, found, expected)


def reduced(front: str, mode: str, dtype: str) -> None:
    """Every operation on scalars, empty and odd arrays; inputs stay."""
    ends = front_of(front)
    hvd = ends.hvd
    size, rank = hvd.size(), hvd.rank()
    for shape in ((), (0, 4), (7, 13)):
        every = parts(size, shape, dtype)
        for name, fold in FOLDS.items():
            number, expected = getattr(hvd, name), every[0]
            for one in every[1:]:
                expected = fold(expected, one)
            own = every[rank].copy()
            found = ends.call(mode, lambda x, op=number: hvd.allreduce(x, op=op), own)
            same(ends, found, np.asarray(expected, numpy_dtype(dtype)), f"{name} {shape}")
            assert np.array_equal(own, every[rank])
    twice = np.full((3,), 2 * rank).astype(numpy_dtype(dtype))
    same(ends, ends.call(mode, hvd.allreduce, twice), np.full((3,), size - 1).astype(numpy_dtype(dtype)), "Average")


def moved(front: str, mode: str, dtype: str) -> None:
    """Gather, broadcast and exchange."""
    ends = front_of(front)
    hvd = ends.hvd
    size, rank = hvd.size(), hvd.rank()
    for shape in ((size, 3), (2 * size,), (0, 2)):
        every = parts(size, shape, dtype)
        own, rows = every[rank], shape[0] // size
        same(ends, ends.call(mode, hvd.allgather, own), np.concatenate(every), f"allgather {shape}")
        same(ends, ends.call(mode, lambda x: hvd.broadcast(x, size - 1), own), every[-1], f"broadcast {shape}")
        mine = slice(rank * rows, (rank + 1) * rows)
        same(
            ends, ends.call(mode, hvd.alltoall, own), np.concatenate([one[mine] for one in every]), f"alltoall {shape}"
        )


def scattered(front: str, mode: str, dtype: str) -> None:
    """Reduce and scatter, also rows that the ranks do not divide."""
    ends = front_of(front)
    hvd = ends.hvd
    size, rank = hvd.size(), hvd.rank()
    for rows in (2 * size, size + 1, 1, 0):
        every = parts(size, (rows, 3), dtype)
        counts = [rows // size + (one < rows % size) for one in range(size)]
        begin = sum(counts[:rank])
        whole = sum(one.astype(np.float64) for one in every)
        expected = whole[begin : begin + counts[rank]].astype(numpy_dtype(dtype))
        found = ends.call(mode, lambda x: hvd.reducescatter(x, op=hvd.Sum), every[rank])
        same(ends, found, expected, f"{rows} rows")


def refused_dtypes(front: str, mode: str) -> list[str]:
    """Return what is said to reductions of dtypes that are only moved."""
    ends = front_of(front)
    said = []
    for dtype in ("uint16", "uint32", "uint64", "complex64", "complex128"):
        for function in (ends.hvd.allreduce, ends.hvd.reducescatter):
            said.append(_message(lambda f=function, d=dtype: ends.call(mode, f, part(0, (4,), d))))
    return said


def _message(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def unequal(front: str) -> None:
    """Gather and exchange unequal numbers of rows, outside of compiled code."""
    ends = front_of(front)
    hvd = ends.hvd
    size, rank = hvd.size(), hvd.rank()
    own = ends.array(np.full((rank + 1, 2), rank, np.int32))
    same(ends, hvd.allgather(own), np.concatenate([np.full((one + 1, 2), one, np.int32) for one in range(size)]))
    rows = np.arange(size * (size + 1) // 2, dtype=np.float32) + 100 * rank
    found, received = hvd.alltoall(ends.array(rows), splits=list(range(1, size + 1)))
    assert ends.values(found).shape == (size * (rank + 1),)
    assert ends.values(received).tolist() == [rank + 1] * size
    assert ends.values(found)[: rank + 1].tolist() == [float(rank * (rank + 1) // 2 + i) for i in range(rank + 1)]


def factors(front: str, mode: str) -> None:
    """Factors and casts for the way."""
    ends = front_of(front)
    hvd = ends.hvd
    size = hvd.size()
    ones = np.ones(5, np.float32)
    scaled = ends.call(mode, lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2, postscale_factor=0.25), ones)
    same(ends, scaled, np.full(5, size / 2, np.float32))
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        found = ends.call(mode, lambda x, c=compression: hvd.allreduce(x, op=hvd.Sum, compression=c), ones)
        same(ends, found, np.full(5, size, np.float32))


def sets(front: str, mode: str) -> str:
    """Reduce in a set of some ranks; return what others learn."""
    ends = front_of(front)
    hvd = ends.hvd
    members = [0, hvd.size() - 1]
    known = hvd.add_process_set(members)
    said = ""
    own = np.full(2, hvd.rank() + 1.0, np.float32)
    if known.included():
        same(ends, ends.call(mode, lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=known), own),
             np.full(2, hvd.size() + 1.0, np.float32))  # fmt: skip
        same(ends, ends.call(mode, lambda x: hvd.broadcast(x, members[1], process_set=known), own),
             np.full(2, hvd.size() + 0.0, np.float32))  # fmt: skip
        same(ends, ends.call(mode, lambda x: hvd.allgather(x, process_set=known), own),
             np.repeat(np.array([1.0, hvd.size()], np.float32), 2))  # fmt: skip
    else:
        said = _message(lambda: ends.call(mode, lambda x: hvd.allreduce(x, process_set=known), own))
    hvd.barrier()
    hvd.remove_process_set(known)
    return said


def disagreeing(front: str, mode: str) -> tuple[str, float]:
    """Return what ranks with other shapes learn, and a sum afterwards."""
    ends = front_of(front)
    hvd = ends.hvd

    def add(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="disagree")

    said = ""
    try:
        ends.values(ends.call(mode, add, np.ones(2 + hvd.rank(), np.float32)))
    except (RingtuneError, *ends.failures) as error:
        assert mode == "compiled" or isinstance(error, ends.failures if ends.always else hvd.HorovodInternalError)
        said = str(error)
    return said, float(ends.values(ends.call(mode, add, np.ones(1, np.float32)))[0])


def refused(front: str) -> dict[str, str]:
    """Return what is said to calls that make no sense."""
    ends = front_of(front)
    hvd = ends.hvd
    one = ends.array(np.ones(4, np.float32))
    calls: dict[str, Callable[[], Any]] = {
        "text": lambda: hvd.allreduce("text"),
        "no number": lambda: hvd.allreduce(one, prescale_factor="2"),
        "operation": lambda: hvd.allreduce(one, op=99),
        "both": lambda: hvd.allreduce(one, average=True, op=hvd.Sum),
        "root": lambda: hvd.broadcast(one, 99),
        "name": lambda: hvd.allreduce(one, name=5),
        "set": lambda: hvd.allreduce(one, process_set=0),
        "scalar": lambda: hvd.allgather(ends.array(np.float32(1))),
        "no tensors": lambda: hvd.grouped_allreduce([]),
        "splits": lambda: hvd.alltoall(one, splits=[1.0, 1.0]),
        "min": lambda: hvd.reducescatter(one, op=hvd.Min),
        "compression": lambda: hvd.allreduce(one, compression="fp16"),
    }
    return {name: _message(call) for name, call in calls.items()}


def together(front: str, mode: str) -> None:
    """Several arrays of all dtypes in one call."""
    ends = front_of(front)
    hvd = ends.hvd
    size, rank = hvd.size(), hvd.rank()
    kinds = ("float32", "int32", "float16", "uint8", "float64", "bfloat16")
    own = [part(rank, (3, count), kind) for count, kind in enumerate(kinds)]

    def add(*tensors: Any) -> Any:
        return hvd.grouped_allreduce(list(tensors), op=hvd.Sum, name="together")

    for _ in range(4):
        found = ends.call(mode, add, *own)
        for count, (kind, result) in enumerate(zip(kinds, found, strict=True)):
            expected = sum(one.astype(np.float64) for one in parts(size, (3, count), kind))
            same(ends, result, expected.astype(numpy_dtype(kind)), kind)


def objects(front: str) -> None:
    hvd = front_of(front).hvd
    assert hvd.broadcast_object({"rank": hvd.rank()}, 1) == {"rank": 1}
    assert hvd.allgather_object("x" * hvd.rank()) == ["x" * rank for rank in range(hvd.size())]


def joined(front: str) -> tuple[list[float], int]:
    """The last rank has two batches more: the others join, and contribute nothing."""
    ends: Front = front_of(front)
    hvd = ends.hvd
    batches = 4 if hvd.rank() == hvd.size() - 1 else 2
    sums = [
        float(ends.values(hvd.allreduce(ends.array(np.ones(1, np.float32)), op=hvd.Sum, name="batch"))[0])
        for _ in range(batches)
    ]
    return sums, int(hvd.join())
