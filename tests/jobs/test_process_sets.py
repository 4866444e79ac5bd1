"""Process sets and join over real ranks: one case for each row of Horovod's contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ringtune.torch as hvd
from tests.jobs.cases import error as error_cases
from tests.jobs.cases import set as cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]

SETS = {
    2: [[0], [1]],
    3: [[0, 2], [1, 2], [1]],
    4: [[0, 1], [2, 3], [0, 3], [1, 2, 3]],
}
WORLDS = [(2, "shm"), (3, "tcp"), (4, "shm")]
EVERYWHERE = pytest.mark.parametrize(("size", "transport"), WORLDS, scope="module")


def expected_in(ranks: list[int], rank: int) -> list[object]:
    """Return what `set_cases.collectives` finds in a set."""
    total, index = sum(one + 1.0 for one in ranks), ranks.index(rank)
    return [
        [total] * 2,
        [pytest.approx(total / len(ranks))] * 2,
        [[max(ranks) + 1.0] * 2] * 2,
        [one + 1.0 for one in ranks],
        [ranks[-1] + 1.0] * 2,
        [float(one) for one in ranks],
        [float(len(ranks))] if index >= 0 else [],
        {"rank": ranks[0]},
        ranks,
    ]


@EVERYWHERE
def test_every_collective_in_every_set(size: int, transport: str, fresh: Callable[..., Job]) -> None:
    job = fresh(size, join=False, transport=transport)
    assert job.run(cases.start, lists=SETS[size]) == [list(range(1, len(SETS[size]) + 1))] * size
    found = job.run(cases.collectives, lists=SETS[size], rounds=2)
    for rank in range(size):
        mine = [ranks for ranks in SETS[size] if rank in ranks]
        assert found[rank] == [expected_in(ranks, rank) for ranks in mine for _ in range(2)]


@pytest.fixture
def sets_of_four(fresh: Callable[..., Job]) -> Job:
    """A job of four ranks with the sets of SETS."""
    job = fresh(4, join=False)
    job.run(cases.start, lists=SETS[4])
    return job


def test_gradients_in_a_set(sets_of_four: Job) -> None:
    found = sets_of_four.run(cases.gradients, ranks=[1, 2, 3])
    assert found[0] is None
    for rank in (1, 2, 3):
        assert found[rank] == {
            "allreduce": [6.0] * 3,
            "allgather": [pytest.approx(2.0)] * 3,
            "broadcast": [pytest.approx(2.0 if rank == 2 else 0.0)] * 3,
            "alltoall": [1.0, 2.0, 3.0],
            "reducescatter": [3.0, 6.0, 9.0],
        }


def test_an_optimizer_in_a_set(sets_of_four: Job) -> None:
    assert sets_of_four.run(cases.train_in_set, ranks=[1, 2, 3]) == [-1.0, -3.0, -3.0, -3.0]


def test_misuse(sets_of_four: Job) -> None:
    found = sets_of_four.run(cases.misuse, ranks=[2, 3])[0]
    classes = {what: kinds.split(", ") for what, kinds in found.items()}
    assert "TypeError" in classes["unregistered"]
    for what in ("not a member", "barrier of others", "rank of others", "static", "no integer"):
        assert "ValueError" in classes[what], what
    assert "NotImplementedError" in classes["adasum"]


def test_duplicates_in_the_list(fresh: Callable[..., Job]) -> None:
    found = fresh(2, join=False).run(cases.duplicates)
    for message, sets, numbers in found:
        assert "entry number 1 is a duplicate" in message
        assert sets == {0: [0, 1], 1: [0], 2: [1]} and numbers == [1, 2]


def test_sets_come_and_go(fresh: Callable[..., Job]) -> None:
    found = fresh(3, join=False).run(cases.dynamic)
    for rank, seen in enumerate(found):
        added, twice, *rest = seen
        assert added == (1, [0, 1], 2) and "ValueError" in twice
        sums = [2.0] if rank < 2 else []
        assert rest == [*sums, (True, None, False), False, 1, *([4.0] if rank != 1 else []), 3.0]


def test_sets_of_communicators(fresh: Callable[..., Job]) -> None:
    found = fresh(4, join=False).run(cases.from_communicators)
    assert [sets for sets, _ in found] == [{0: [0, 1, 2, 3], 1: [0, 2], 2: [1, 3]}] * 4
    assert [ranks for _, ranks in found] == [[0.0, 2.0], [1.0, 3.0]] * 2


NEUTRAL = {"Sum": hvd.Sum, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}


@EVERYWHERE
@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "int8"])
@pytest.mark.parametrize("op", list(NEUTRAL))
def test_join(op: str, dtype: str, size: int, transport: str, job: GetJob) -> None:
    steps = list(range(1, size + 1))  # rank 0 has least data
    found = job(size, transport).run(cases.join_after, steps=steps, op=NEUTRAL[op], dtype=dtype)
    combine = {"Sum": sum, "Min": min, "Max": max, "Product": product}[op]
    for rank, (results, last, afterwards) in enumerate(found):
        ranks = [[one for one in range(size) if steps[one] > step] for step in range(steps[rank])]
        assert results == [
            [combine([one + 1 for one in there]), combine([-one - 1 for one in there])] for there in ranks
        ]
        assert last == size - 1 and afterwards == size


def product(values: list[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def test_an_average_is_over_all_ranks_joined_or_not(job: GetJob) -> None:
    found = job(2).run(cases.join_after, steps=[0, 1], op=hvd.Average, dtype="float32")
    assert found == [([], 1, 2.0), ([[1.0, -1.0]], 1, 2.0)]


@EVERYWHERE
def test_what_cannot_go_on_without_a_joined_rank(size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(cases.gather_while_joined)
    assert [error for error, _ in found] == ["nothing", *["Mismatch"] * (size - 1)]
    assert len({last for _, last in found}) == 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_removed_set_leaves_no_descriptor_open(transport: str, fresh: Callable[..., Job]) -> None:
    for counts in fresh(3, join=False, transport=transport).run(error_cases.open_descriptors, rounds=4):
        assert counts[3] == counts[1], counts
