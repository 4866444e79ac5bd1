"""One report of a stall: who is late, since when, for which tensors, and where it stands; at once if nobody goes on."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.jobs.cases import stall as stall_cases
from tests.jobs.launching import STARVED_S, Job, wait_until

GetJob = Callable[..., Job]
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])
LATE_S = 4


def report_of(job: Job, rank: int = 0) -> str:
    """Wait for a whole report on a rank's stderr and return it; its further lines are indented."""
    found: list[str] = []

    def look() -> bool:
        whole = job.ranks[rank].stderr().rpartition("\n")[0]
        found[:] = re.findall(r"stalled: .*(?:\n    .*)*", whole)
        return bool(found)

    wait_until(look, lambda: f"no report on rank {rank}: {job.ranks[rank].stderr()!r}")
    return found[0]


def reports(job: Job) -> int:
    return sum(rank.stderr().count("stalled: ") for rank in job.ranks)


@pytest.mark.slow
@TRANSPORTS
@pytest.mark.parametrize("repeated", [False, True], ids=["negotiated", "schedule"])
@pytest.mark.parametrize("late", [0, 3])
def test_a_report_names_the_late_rank_alone(late: int, repeated: bool, transport: str, fresh: GetJob) -> None:
    job = fresh(4, transport=transport, stall_check_time_seconds=1)
    if repeated:
        job.run(stall_cases.repeat_steps)
    for number, rank in enumerate(job.ranks):
        if number == late:
            rank.send(stall_cases.load_a_batch, {"seconds": LATE_S})
        else:
            rank.send(stall_cases.one_step, {})
    report = report_of(job)
    head, *places = report.splitlines()
    assert re.search(rf"'allreduce\.grad\.\d' \(allreduce\).* ago and still waits? for rank {late} on host \S+$", head)
    assert re.search(r"\d\.\d s", head)
    assert len(places) == 1 and re.search(
        rf"rank {late} on host \S+: it stands in \S+stall\.py:\d+ in load_a_batch, called by .*; it has submitted "
        "nothing that is not done",
        places[0],
    ), report
    assert [found[0] for found in job.collect()] == [12.0] * 4
    assert reports(job) <= LATE_S


@pytest.mark.slow
@pytest.mark.parametrize("repeated", [False, True], ids=["negotiated", "schedule"])
def test_a_rank_in_native_code_that_keeps_the_interpreter_says_where_it_stands(repeated: bool, fresh: GetJob) -> None:
    job = fresh(2, transport="tcp", stall_check_time_seconds=1)
    if repeated:
        job.run(stall_cases.repeat_steps)
    job.ranks[0].send(stall_cases.one_step, {})
    job.ranks[1].send(stall_cases.hold_the_interpreter, {"seconds": LATE_S})
    report = report_of(job)
    assert re.search(r"rank 1 on host \S+: it stands in \S+stall\.py:\d+ in hold_the_interpreter", report), report
    assert [found[0] for found in job.collect()] == [6.0] * 2


@pytest.mark.slow
@TRANSPORTS
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_process_is_said_to_be_stopped(stopped: int, transport: str, fresh: GetJob) -> None:
    job = fresh(3, transport=transport, stall_check_time_seconds=1)
    job.run(stall_cases.repeat_steps)
    job.ranks[stopped].signal(signal.SIGSTOP)
    waiting = [rank for number, rank in enumerate(job.ranks) if number != stopped]
    for rank in waiting:
        rank.send(stall_cases.one_step, {})
    report = report_of(job, rank=1 - stopped)
    assert re.search(rf"waits? for rank {stopped} on host \S+$", report.splitlines()[0]), report
    assert re.search(rf"rank {stopped} on host \S+: its process is stopped", report), report
    job.ranks[stopped].signal(signal.SIGCONT)
    job.ranks[stopped].send(stall_cases.one_step, {})
    assert [found[0] for found in job.collect()] == [9.0] * 3


@TRANSPORTS
@pytest.mark.parametrize("repeated", [False, True], ids=["negotiated", "schedule"])
def test_ranks_that_wait_for_one_another_are_told_at_once(repeated: bool, transport: str, fresh: GetJob) -> None:
    job = fresh(3, transport=transport)  # with the stall time of a minute
    if repeated:
        job.run(stall_cases.repeat_steps)
    begun = time.monotonic()
    for number, rank in enumerate(job.ranks):
        rank.send(stall_cases.sum_of, {"name": "ab"[number > 0]})
    report = report_of(job)
    assert time.monotonic() - begun < 8 + STARVED_S
    assert "the ranks wait for different tensors, so none can go on" in report
    assert re.search(r"'allreduce\.a' \(allreduce\).* waits for ranks 1(-|, )2 on host", report), report
    assert re.search(r"'allreduce\.b' \(allreduce\).* waits for rank 0 on host", report), report
    assert re.search(r"rank 1 on host \S+: it stands in .*; it waits in 'allreduce\.b'", report), report


@pytest.mark.slow
def test_a_late_rank_is_not_taken_for_one_that_waits(fresh: GetJob) -> None:
    """Every rank has submitted what others have not, but one of them computes and goes on."""
    job = fresh(2)
    assert run_crossing(job) == [6.0] * 2
    assert reports(job) == 0


def run_crossing(job: Job) -> list[Any]:
    job.ranks[0].send(stall_cases.cross, {"names": ["a", "b", "c"], "pause_s": 0.0})
    job.ranks[1].send(stall_cases.cross, {"names": ["b", "c", "a"], "pause_s": 4.0})
    return [found[0] for found in job.collect()]
