"""The steady state over real ranks: no control message, right results whatever breaks the plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.jobs import plan_cases
from tests.jobs.launching import Job, variables

GetJob = Callable[..., Job]
SIZES = pytest.mark.parametrize("size", [2, 3], scope="module")


# A busy machine may break a plan: a window in which nothing did must be without a message.


@SIZES
@pytest.mark.parametrize("tensors", [1, 5, 40])
def test_repeated_steps_need_no_control_message(tensors: int, size: int, job: GetJob) -> None:
    for windows in job(size).run(plan_cases.steady, tensors=tensors):
        assert windows[0] > 0
        assert 0 in windows


@SIZES
def test_repeated_blocking_calls_need_none_either(size: int, job: GetJob) -> None:
    for windows in job(size).run(plan_cases.blocking):
        assert 0 in windows


def test_without_plans_every_step_is_negotiated(fresh: GetJob) -> None:
    job = fresh(2, environ=variables(2) | {"RINGTUNE_PLAN": "0"})
    for windows in job.run(plan_cases.steady, tensors=5):
        assert 0 not in windows


@pytest.mark.parametrize("size", [2, 3, 5], scope="module")
@pytest.mark.parametrize("seed", range(6))
def test_surprises_change_no_result(seed: int, size: int, job: GetJob) -> None:
    assert job(size).run(plan_cases.disturbed, seed=seed) == ["done"] * size


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_within_a_plan_is_known_in_two_seconds(victim: int, fresh: GetJob) -> None:
    job = fresh(3)
    found = job.attempt(plan_cases.killed_in_the_plan, 30.0, victim=victim)
    for rank, result in enumerate(found):
        if rank == victim:
            assert result is None
            continue
        (report,) = result
        assert report["in_plan"]
        assert report["kind"] == "PeerLost"
        assert report["after_s"] < 2.0


def test_knobs_change_within_a_plan_and_a_new_one_begins(fresh: GetJob) -> None:
    assert fresh(2).run(plan_cases.change_knobs_in_the_plan) == [[1, 4096, 0]] * 2


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_joins_within_a_plan(size: int, fresh: GetJob) -> None:
    found = fresh(size).run(plan_cases.join_in_the_plan)
    assert len(set(found)) == 1
