"""Rows of Horovod's contract and defects of Horovod's that need several ranks and have no place elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ringtune.torch as hvd
from tests.jobs.cases import contract as cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]
SIZES = pytest.mark.parametrize("size", [2, 3], scope="module")


@SIZES
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (hvd.Sum, [True, False, True, True]),
        (hvd.Max, [True, False, True, True]),
        (hvd.Min, [True, False, False, False]),
        (hvd.Product, [True, False, False, False]),
    ],
    ids=["sum", "max", "min", "product"],
)
def test_truth_values(op: int, expected: list[bool], size: int, job: GetJob) -> None:
    assert job(size).run(cases.logical, op=op) == [expected] * size


@SIZES
@pytest.mark.parametrize("what", cases.LOOSE)
def test_a_tensor_that_is_not_contiguous(what: str, size: int, job: GetJob) -> None:
    total = [10.0 * sum(range(size)) + size * row for row in (0, 1)]
    expected = {
        "allreduce": total,
        "broadcast": [10.0, 11.0],
        "allgather": [10.0 * rank + row for rank in range(size) for row in (0, 1)],
    }[what.removeprefix("grouped_").rstrip("_")]
    for rank, (result, matrix) in enumerate(job(size).run(cases.loose, what=what)):
        assert result == expected
        own = [10.0 * rank, 10.0 * rank + 1]
        columns = [own, expected if what.endswith("_") else own, [7.0, 7.0]]  # nothing beside it was touched
        assert matrix == [list(row) for row in zip(*columns, strict=True)]


@SIZES
@pytest.mark.parametrize("what", cases.DIFFERENTIABLE)
def test_gradients_flow_through(what: str, size: int, job: GetJob) -> None:
    ranks = size * (size + 1) / 2
    expected = {
        "allreduce, its sum": 1.0,
        "allreduce": ranks,
        "allreduce with factors": 6 * ranks,
        "average": ranks / size,
        "grouped_allreduce": 3 * ranks,
        "allgather": ranks / size,
        "grouped_allgather": 3 * ranks / size,
        "broadcast": ranks / size,
    }[what]
    found = job(size).run(cases.gradient, what=what)
    at_root = [rank == 1 or what != "broadcast" for rank in range(size)]
    assert found == [[pytest.approx(expected if here else 0.0)] * 2 for here in at_root]


@SIZES
@pytest.mark.parametrize("what", cases.WHILE_JOINED)
def test_what_needs_all_fails_while_one_has_joined_and_sums_go_on(what: str, size: int, job: GetJob) -> None:
    others = size - 1
    expected = [("nothing", [], size), *[("Mismatch", [others, others], size)] * others]
    assert job(size).run(cases.while_joined, what=what) == expected


@pytest.mark.parametrize("size", [2, 3, 4])
def test_unnamed_operations_keep_in_step_beside_a_set(size: int, fresh: GetJob) -> None:
    found = fresh(size, join=False).run(cases.unnamed_after_sets)
    assert found == [[size, 12 * size, 1, 12, size]] * size


@SIZES
def test_an_object_reaches_ranks_that_hold_another_type(size: int, job: GetJob) -> None:
    assert job(size).run(cases.objects_of_other_types) == [{"a": 1}] * size


def test_a_root_outside_the_set_is_refused(fresh: GetJob) -> None:
    words = "broadcast received invalid root rank 0 for provided process set"
    first, *others = fresh(3, join=False).run(cases.roots_outside_a_set)
    assert first == "nothing"
    assert all(words in said for said in others)


@SIZES
@pytest.mark.parametrize(
    ("sparse", "sparse_as_dense", "stays"), [(True, False, True), (True, True, True), (False, False, False)]
)
def test_gradients_of_an_embedding(sparse: bool, sparse_as_dense: bool, stays: bool, size: int, job: GetJob) -> None:
    rows = [[-1 / size if row < size else 0.0] * 2 for row in range(4)] + [[-2.0, -2.0]]
    for weights, was_sparse in job(size).run(cases.embedding, sparse_as_dense=sparse_as_dense, sparse=sparse):
        assert weights == [pytest.approx(row) for row in rows]
        assert was_sparse is stays


@pytest.mark.parametrize("size", [2, 3])
def test_what_a_rank_that_leaves_has_not_submitted_fails_on_the_others(size: int, fresh: GetJob) -> None:
    found = fresh(size).run(cases.left_alone)
    assert found == ["nothing" if rank == 1 else "ShutDown" for rank in range(size)]
