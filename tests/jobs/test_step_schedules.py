"""The steady state over real ranks: no control message, right results whatever breaks the plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.jobs.cases import common
from tests.jobs.cases import step_schedule as step_schedule_cases
from tests.jobs.cases import step_schedule_sets as step_schedule_sets_cases
from tests.jobs.launching import LOST_WITHIN_S, Job, variables

GetJob = Callable[..., Job]
WORLDS = [(2, "shm"), (3, "shm"), (2, "tcp"), (3, "tcp")]
EVERYWHERE = pytest.mark.parametrize(("size", "transport"), WORLDS, scope="module")


# A busy machine may break a plan: a window in which nothing did must be without a message.


@EVERYWHERE
@pytest.mark.parametrize("tensors", [1, 5, 40])
def test_repeated_steps_need_no_control_message(tensors: int, size: int, transport: str, job: GetJob) -> None:
    for windows in job(size, transport).run(step_schedule_cases.steady, tensors=tensors):
        assert windows[0] != (0, 0)
        assert (0, 0) in windows


@EVERYWHERE
def test_repeated_blocking_calls_need_none_either(size: int, transport: str, job: GetJob) -> None:
    for windows in job(size, transport).run(step_schedule_cases.blocking):
        assert (0, 0) in windows


@EVERYWHERE
def test_steps_of_every_collective_need_none_either(size: int, transport: str, job: GetJob) -> None:
    for windows in job(size, transport).run(step_schedule_cases.every_collective):
        assert windows[0] != (0, 0)
        assert (0, 0) in windows


@pytest.mark.parametrize("algorithm", ["ring", "flat", "recursive-doubling", "halving-doubling", "tree"])
def test_every_algorithm_carries_the_agreement(algorithm: str, fresh: GetJob) -> None:
    job = fresh(3, transport="tcp", algorithm=algorithm)
    for windows in job.run(step_schedule_cases.steady, tensors=5):
        assert (0, 0) in windows
    assert job.run(step_schedule_cases.disturbed, seed=1) == ["done"] * 3


def test_a_large_tensor_alone_needs_no_copy_and_no_message(fresh: GetJob) -> None:
    job = fresh(2, transport="tcp")
    for windows in job.run(step_schedule_cases.steady, tensors=1, count=1_000_000, windows=4):
        assert (0, 0) in windows


def test_hosts_of_several_ranks_follow_a_plan(fresh: GetJob) -> None:
    job = fresh(4, join=False)
    environ = variables(4)
    for number, rank in enumerate(job.ranks):
        mine = {name: value.replace("{rank}", str(number)) for name, value in environ.items()}
        rank.send(common.open_session, {"environ": {**mine, "RINGTUNE_HOSTNAME": f"host-{number // 2}"}})
    assert job.collect() == [((number, 4),) for number in range(4)]
    for windows in job.run(step_schedule_cases.steady, tensors=5):
        assert (0, 0) in windows
    assert job.run(step_schedule_cases.disturbed, seed=2) == ["done"] * 4


def test_without_plans_every_step_is_negotiated(fresh: GetJob) -> None:
    job = fresh(2, environ=variables(2) | {"RINGTUNE_STEP_SCHEDULE": "0"})
    for windows in job.run(step_schedule_cases.steady, tensors=5, attempts=1):
        assert (0, 0) not in windows


@pytest.mark.parametrize(
    ("size", "transport"), [(2, "shm"), (3, "shm"), (5, "shm"), (2, "tcp"), (4, "tcp")], scope="module"
)
@pytest.mark.parametrize("seed", range(6))
def test_surprises_change_no_result(seed: int, size: int, transport: str, job: GetJob) -> None:
    assert job(size, transport).run(step_schedule_cases.disturbed, seed=seed) == ["done"] * size


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_within_a_plan_is_known_in_two_seconds(victim: int, transport: str, fresh: GetJob) -> None:
    job = fresh(3, transport=transport)
    found = job.attempt(step_schedule_cases.killed_in_the_plan, victim=victim)
    for rank, result in enumerate(found):
        if rank == victim:
            assert result is None
            continue
        (report,) = result
        assert report["in_plan"]
        assert report["kind"] == "PeerLost"
        assert report["after_s"] < LOST_WITHIN_S


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_knobs_change_within_a_plan_and_a_new_one_begins(transport: str, fresh: GetJob) -> None:
    assert (
        fresh(2, transport=transport).run(step_schedule_cases.change_knobs_in_the_plan) == [(True, 1, 4096, True)] * 2
    )


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_a_rank_joins_within_a_plan(size: int, transport: str, fresh: GetJob) -> None:
    found = fresh(size, transport=transport).run(step_schedule_cases.join_in_the_plan)
    assert len(set(found)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_idle_rank_within_a_plan_uses_no_processor(transport: str, fresh: GetJob) -> None:
    for in_plan, share in fresh(2, transport=transport).run(step_schedule_cases.idle_in_the_plan, seconds=3.0):
        assert in_plan
        assert share < 0.01, f"{share:.2%} of a core"


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_waits_in_a_round_uses_little(transport: str, fresh: GetJob) -> None:
    shares = fresh(2, transport=transport).run(step_schedule_cases.waiting_in_the_plan, seconds=3.0)
    assert shares[0] < 0.03, f"{shares[0]:.2%} of a core"


SETS = [[0, 1], [2, 3], [1, 2]]  # two that are disjoint, and one that overlaps both


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_steps_of_process_sets_need_no_control_message_either(transport: str, fresh: GetJob) -> None:
    job = fresh(4, join=False, transport=transport)
    job.run(step_schedule_sets_cases.begin, lists=SETS)
    for lists, together in ((SETS, True), (SETS[:2], True), (SETS[:2], False), (SETS[:1], False)):
        for rank, windows in enumerate(job.run(step_schedule_sets_cases.steady, lists=lists, together=together)):
            assert (0, 0) in windows
            if together or rank in lists[0]:
                assert windows[0] != (0, 0)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_surprises_in_process_sets_change_no_result(transport: str, fresh: GetJob) -> None:
    job = fresh(4, join=False, transport=transport)
    job.run(step_schedule_sets_cases.begin, lists=SETS)
    for seed in range(4):
        assert job.run(step_schedule_sets_cases.disturbed, lists=SETS, seed=seed) == ["done"] * 4
