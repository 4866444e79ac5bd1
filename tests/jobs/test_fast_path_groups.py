"""The fast path of repeated groups over real ranks: no Python on it, and nothing else when a group is not alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.jobs.cases import fast_path_groups as cases
from tests.jobs.launching import Job, variables

GetJob = Callable[..., Job]


@pytest.mark.parametrize("size", [1, 2, 3], scope="module")
@pytest.mark.parametrize("blocking", [True, False])
def test_repeated_groups_enter_no_python(blocking: bool, size: int, job: GetJob) -> None:
    job(size).run(cases.alike, blocking=blocking)


@pytest.mark.parametrize("what", cases.UNLIKE)
def test_a_group_that_differs_goes_the_long_way(what: str, job: GetJob) -> None:
    for entered in job(2).run(cases.unlike, what=what):
        assert "grouped_allreduce_async_" in entered


def test_what_is_refused_is_refused_in_the_same_words(job: GetJob) -> None:
    for messages in job(2).run(cases.refused):
        for message, expected in zip(
            messages,
            [
                "TypeError: grouped_allreduce_async_() got an unexpected keyword argument 'tensor'",
                "InvalidArgument: grouped_allreduce: got no tensors",
                "InvalidArgument: grouped_allreduce_async_: tensors[0] is of layout torch.sparse_coo",
            ],
            strict=True,
        ):
            assert message.startswith(expected)


def test_a_group_in_flight_is_refused_as_a_whole(job: GetJob) -> None:
    first, second = job(2).run(cases.in_flight_twice)
    assert first.startswith("Duplicate tensor name 'grouped_allreduce.group.twice_1of4'")
    assert second == ""


def test_the_callers_list_may_change(job: GetJob) -> None:
    job(2).run(cases.the_callers_list_is_the_callers)


def test_ranks_that_disagree_are_told(job: GetJob) -> None:
    first, second = job(2).run(cases.disagree)
    assert first == second
    assert "grouped_allreduce.group.disagree_3of4" in first


def test_shutdown_and_init(fresh: GetJob) -> None:
    assert fresh(2).run(cases.again_after_shutdown) == [["NotInitialized"] * 2] * 2


def test_process_sets_that_come_and_go(fresh: GetJob) -> None:
    environ = variables(3) | {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    assert fresh(3, environ=environ).run(cases.sets_come_and_go) == [["TypeError"] * 2] * 3
