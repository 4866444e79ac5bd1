"""Alltoall, reducescatter, Adasum and groups over real ranks: one case for each row of Horovod's contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ringtune.torch as hvd
from tests.jobs.cases import alltoall as cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]

DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"]
WORLDS = [(1, "shm"), (2, "shm"), (3, "tcp"), (4, "shm")]
EVERYWHERE = pytest.mark.parametrize(("size", "transport"), WORLDS, scope="module")
POWERS = pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (4, "tcp")], scope="module")

TABLES = {
    "equal": None,
    "uneven": [[3, 0, 1, 2], [0, 5, 2, 1], [4, 1, 0, 0], [1, 1, 1, 1]],
    "none": [[0] * 4] * 4,
    "many": [[700, 1, 0, 9]] * 4,
}


@EVERYWHERE
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table", list(TABLES))
def test_alltoall(table: str, dtype: str, size: int, transport: str, job: GetJob) -> None:
    splits = TABLES[table]
    found = job(size, transport).run(cases.alltoall, dtype=dtype, splits=splits, extra=0, width=5)
    rows = [[2] * size] * size if splits is None else splits
    assert found == [[rows[sender][rank] for sender in range(size)] for rank in range(size)]


@EVERYWHERE
def test_rows_beyond_the_splits_are_not_sent(size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.alltoall, dtype="float32", splits=[[1, 2, 0, 1]] * 4, extra=3, width=1)
    assert found == [[[1, 2, 0, 1][rank]] * size for rank in range(size)]


@EVERYWHERE
def test_alltoall_returns_counts_only_with_splits(size: int, transport: str, job: GetJob) -> None:
    column = [[float(rank + 10 * sender) for sender in range(size)] for rank in range(size)]
    found = job(size, transport).run(cases.alltoall_returns)
    assert found == [(one, one, [1] * size, "torch.int32") for one in column]


@EVERYWHERE
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=["sum", "average"])
@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize("rows", [0, 1, 3, 1001])
def test_reducescatter(rows: int, dtype: str, op: int, size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.reducescatter, dtype=dtype, rows=rows, op=op)
    assert found == [rows // size + (rank < rows % size) for rank in range(size)]


@EVERYWHERE
def test_factors_of_a_reducescatter(size: int, transport: str, job: GetJob) -> None:
    ranks = size * (size + 1) // 2
    found = job(size, transport).run(cases.scaled_reducescatter, prescale=0.5, postscale=4.0)
    assert found == [[4.0 * ranks, 8.0 * ranks]] * size


@EVERYWHERE
def test_groups(size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.grouped)
    for rank, (scattered, gathered) in enumerate(found):
        assert scattered == [[float(size * (rank * (i + 1) + k)) for k in range(i + 1)] for i in range(3)]
        assert gathered == [size * (size + 1) // 2] * 2


@POWERS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_adasum_averages_what_is_parallel(dtype: str, size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.adasum, dtype=dtype, parallel=True)
    assert [values for values, _ in found] == [[float(i) for i in range(7)]] * size
    assert len({digest for _, digest in found}) == 1


@POWERS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_adasum_adds_what_is_orthogonal(dtype: str, size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.adasum, dtype=dtype, parallel=False)
    assert [values for values, _ in found] == [[float(i + 1) if i < size else 0.0 for i in range(7)]] * size


@POWERS
def test_the_delta_optimizer(size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.adasum_gradients_step, steps=3)
    assert [values for _, values in found] == [[1 - 1.5] * 4 + [-3.0] * 2] * size
    assert len({digest for digest, _ in found}) == 1


@EVERYWHERE
def test_gradient_of_alltoall(size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.gradient_of, what="alltoall")
    assert found == [[float(rank + 1) for rank in range(size)]] * size


@EVERYWHERE
def test_gradient_of_alltoall_with_rows_that_stay(size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.gradient_of, what="alltoall with splits")
    assert found == [[float(rank + 1) if rank < size - 1 else 0.0 for rank in range(size)]] * size


@EVERYWHERE
@pytest.mark.parametrize(
    ("what", "factor"), [("reducescatter", None), ("reducescatter average", 0.5), ("grouped reducescatter", None)]
)
def test_gradient_of_reducescatter(what: str, factor: float | None, size: int, transport: str, job: GetJob) -> None:
    times = (size if factor is None else factor) * (3 if what.startswith("grouped") else 1)
    found = job(size, transport).run(cases.gradient_of, what=what)
    assert found == [[times * (rank + 1) for rank in range(size)]] * size


@EVERYWHERE
def test_tensors_that_are_not_contiguous(size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.strided)
    assert found == [([2.0 * rank] * size, [2.0 * rank * size]) for rank in range(size)]


@pytest.mark.parametrize(
    "what",
    ["splits of int64", "splits in 2D", "too few splits", "too many rows", "rows that do not divide", "a scalar",
     "a bad root"],
)  # fmt: skip
def test_refused_where_it_is_submitted(what: str, job: GetJob) -> None:
    assert all("ValueError" in kinds for kinds in job(2).run(cases.refused, what=what))


def test_reducescatter_of_another_operation(job: GetJob) -> None:
    assert all("RuntimeFailure" in kinds for kinds in job(2).run(cases.refused, what="a maximum"))


@pytest.mark.parametrize(
    "what", ["reducescatter shapes", "reducescatter operations", "alltoall shapes", "alltoall dtypes"]
)
def test_a_mismatch_is_raised_everywhere_and_the_job_goes_on(what: str, job: GetJob) -> None:
    assert job(3).run(cases.mismatched, what=what) == [("Mismatch", 3.0)] * 3
