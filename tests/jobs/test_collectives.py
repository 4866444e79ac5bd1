"""Exact collectives over real ranks. Integers make every sum exact, so equality is exact too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ringtune.torch as hvd
from tests.jobs.cases import alltoall, common, training
from tests.jobs.launching import Job

GetJob = Callable[..., Job]

MIB = 1 << 20
COUNTS = {"none": 0, "one": 1, "odd": 1001}
BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint8": 1, "int8": 1, "int16": 2,
}  # fmt: skip
OPS = {"Average": hvd.Average, "Sum": hvd.Sum, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}
WORLDS = [(size, transport) for size in (1, 2, 3, 5) for transport in ("shm", "tcp")]
EVERYWHERE = pytest.mark.parametrize(("size", "transport"), WORLDS, scope="module")
SOMEWHERE = pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp"), (5, "shm")], scope="module")


def same_everywhere(digests: list[object]) -> bool:
    return len({str(one) for one in digests}) == 1


@EVERYWHERE
@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.parametrize("dtype", list(BYTES))
@pytest.mark.parametrize("count", list(COUNTS))
def test_allreduce(count: str, dtype: str, op: str, size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(common.allreduce, dtype=dtype, count=COUNTS[count], op=OPS[op])
    assert same_everywhere(found)


@EVERYWHERE
@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "uint8"])
def test_allreduce_of_a_mebibyte_and_three(dtype: str, op: str, size: int, transport: str, job: GetJob) -> None:
    count = MIB // BYTES[dtype] + 3
    found = job(size, transport).run(common.allreduce, dtype=dtype, count=count, op=OPS[op], repeat=1)
    assert same_everywhere(found)


@EVERYWHERE
@pytest.mark.parametrize("dtype", [*BYTES, "bool"])
@pytest.mark.parametrize("count", [0, 1, 1001, MIB // 4 + 3])
def test_broadcast(count: int, dtype: str, size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(common.broadcast, dtype=dtype, count=count, root=size // 2)
    assert same_everywhere(found)


@EVERYWHERE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("rows", [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 3, 0, 2, 7], [1000, 1, 0, 333, 7]], ids=str)
@pytest.mark.parametrize("width", [1, 5])
def test_allgather(width: int, rows: list[int], dtype: str, size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(common.allgather, dtype=dtype, rows=rows[:size], width=width)
    assert same_everywhere(found)


@SOMEWHERE
@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "complex64", "complex128"])
def test_unsigned_and_complex_tensors_are_moved(dtype: str, size: int, transport: str, job: GetJob) -> None:
    assert same_everywhere(job(size, transport).run(common.broadcast, dtype=dtype, count=1001, root=size // 2))
    assert same_everywhere(
        job(size, transport).run(common.allgather, dtype=dtype, rows=[3, 0, 2, 7, 1][:size], width=5)
    )
    job(size, transport).run(alltoall.alltoall, dtype=dtype, splits=None, extra=0, width=3)


@EVERYWHERE
def test_allgather_of_a_mebibyte_and_three(size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(common.allgather, dtype="uint8", rows=[MIB + 3] * size, width=1)
    assert same_everywhere(found)


@EVERYWHERE
@pytest.mark.parametrize("slow_rank", [0, 1])
def test_barrier(slow_rank: int, size: int, transport: str, job: GetJob) -> None:
    times = job(size, transport).run(common.barrier, slow_rank=slow_rank % size, delay_s=0.05)
    assert min(left for _, left in times) >= max(came for came, _ in times)


@EVERYWHERE
@pytest.mark.parametrize("seed", [1, 2])
def test_many_tensors_in_an_order_of_each_ranks_own(seed: int, size: int, transport: str, job: GetJob) -> None:
    assert same_everywhere(job(size, transport).run(common.many, seed=seed, count=150))


@EVERYWHERE
@pytest.mark.parametrize("rows", [[5], [0, 1, 1000], [7] * 6], ids=str)
def test_groups_of_mixed_dtypes(rows: list[int], size: int, transport: str, job: GetJob) -> None:
    assert same_everywhere(job(size, transport).run(common.group, rows=rows))


@SOMEWHERE
def test_a_group_waits_for_all_its_members(size: int, transport: str, job: GetJob) -> None:
    assert job(size, transport).run(common.group_needs_all) == [False] * size


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "int16"])
def test_an_average_of_integers_is_truncated(dtype: str, job: GetJob) -> None:
    values = [[1, -1, 4], [2, -2, 4]]
    assert job(2).run(common.integer_average, values=values, dtype=dtype) == [[1, -1, 4]] * 2


@SOMEWHERE
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_factors(dtype: str, size: int, transport: str, job: GetJob) -> None:
    ranks = size * (size + 1) // 2
    found = job(size, transport).run(common.scaled, dtype=dtype, op=hvd.Sum, prescale=0.5, postscale=4.0)
    assert found == [[4.0 * ranks, 8.0 * ranks, 16.0 * ranks]] * size


def test_factors_of_integers_truncate_after_each_step(job: GetJob) -> None:
    found = job(2).run(common.scaled, dtype="int32", op=hvd.Sum, prescale=0.3, postscale=1.0)
    assert found == [[0 + 1, 1 + 2, 2 + 4]] * 2  # 0.6 1.2 2.4 and 1.2 2.4 4.8


@SOMEWHERE
@pytest.mark.parametrize("what", ["allreduce", "allgather", "broadcast"])
def test_gradients_through_collectives(what: str, size: int, transport: str, job: GetJob) -> None:
    ranks = size * (size + 1) // 2
    expected = {
        "allreduce": [[float(ranks)] * 3] * size,
        "allgather": [[ranks / size] * 3] * size,
        "broadcast": [[ranks / size if rank == 1 else 0.0] * 3 for rank in range(size)],
    }
    found = job(size, transport).run(training.differentiate, what=what)
    assert found == [pytest.approx(one) for one in expected[what]]


@SOMEWHERE
@pytest.mark.parametrize("value", [None, {"a": "ä"}, "x" * 300_000], ids=["none", "dict", "long"])
def test_objects(value: object, size: int, transport: str, job: GetJob) -> None:
    for sent, gathered in job(size, transport).run(training.share_objects, value=value):
        assert sent == [size - 1, value]
        assert gathered == [[rank, value] * (rank + 1) for rank in range(size)]


@SOMEWHERE
def test_sparse_tensors(size: int, transport: str, job: GetJob) -> None:
    expected = [[float(row < size) + (size if row == 4 else 0)] * 2 for row in range(5)]
    assert job(size, transport).run(training.sparse) == [expected] * size
