"""Jobs of a race, with ranks that need no library."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ringtune.benchmarks.harness import racejob
from ringtune.benchmarks.harness.jobs import thread_variables
from ringtune.benchmarks.harness.racejob import JobLost, JobPlan, RaceJob, TaskUnsupported

HANG_S = 120  # a bound on hangs: a starved machine may take any time up to it
ROOT = Path(__file__).parents[2]
OPEN = {"do": "open", "contender": "way", "sizes_bytes": [16, 8], "dtype": "float32"}
BURST = {"do": "burst", "contender": "way", "loops": 2, "calls": 3, "lead_in": True}


def plan_of(behaviour: str, ranks: int = 1) -> JobPlan:
    def commands(join: str) -> Sequence[Sequence[str]]:
        fake = [sys.executable, "-m", "tests.benchmarks.fake_rank", join]
        return [[*fake, str(rank), str(ranks), behaviour] for rank in range(ranks)]

    environ = {**os.environ, **thread_variables(1), "PYTHONPATH": str(ROOT)}
    return JobPlan("fake", {"fake": "way"}, ranks, commands, environ)


@contextmanager
def opened(behaviour: str, ranks: int = 1) -> Iterator[RaceJob]:
    job = RaceJob(plan_of(behaviour, ranks))
    try:
        yield job
    finally:
        job.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that hang are ended soon; one that leaves and needs longer is ended as well, and nobody minds."""
    monkeypatch.setattr(racejob, "_LEAVE_SECONDS", 0.5)


def test_orders_and_answers() -> None:
    with opened("good") as job:
        assert job.about == "fake good"
        assert job.ask(HANG_S, **OPEN) == [{"max_calls": 256}]
        [answer] = job.ask(HANG_S, **BURST)
        assert answer["ns"] > 0
        assert job.ask(HANG_S, do="close") == [{}]


def test_a_job_leaves_no_process() -> None:
    with opened("good", 3) as job:
        pids = list(job._pids)
        assert all(psutil.pid_exists(pid) for pid in pids)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_rank_sleeps_between_bursts() -> None:
    with opened("good") as job:
        [pid] = job._pids
        job.ask(HANG_S, **OPEN)
        used = []
        while not used or (min(used) > 0.02 and len(used) < 60):  # at first it may still be busy with its start
            before = psutil.Process(pid).cpu_times()
            time.sleep(0.5)
            after = psutil.Process(pid).cpu_times()
            used.append(after.user + after.system - before.user - before.system)
        assert min(used) <= 0.02


def test_a_wrong_sum_is_named() -> None:
    with opened("good", 2) as job:
        job.ask(HANG_S, **OPEN)
        with pytest.raises(JobLost, match=r"fake: rank \d: ArithmeticError: wrong sum: tensor 0 of 4 elements"):
            job.ask(HANG_S, **BURST)


def test_what_a_job_cannot_do_does_not_end_it() -> None:
    with opened("cannot", 2) as job:
        with pytest.raises(TaskUnsupported, match="no float32 here"):
            job.ask(HANG_S, **OPEN)
        assert job.ask(HANG_S, do="close") == [{}, {}]


def test_a_dying_rank_is_reported_with_its_last_words() -> None:
    with opened("dies", 2) as job:
        job.ask(HANG_S, **OPEN)
        with pytest.raises(JobLost, match=r"fake: rank \d died\n(?s:.*)its last words"):
            job.ask(HANG_S, **BURST)
        with pytest.raises(JobLost):
            job.ask(HANG_S, **BURST)


def test_a_hanging_rank_is_reported_in_time_and_killed() -> None:
    with opened("hangs") as job:
        pids = list(job._pids)
        job.ask(HANG_S, **OPEN)
        begin = time.monotonic()
        with pytest.raises(JobLost, match=r"no answer from rank \[0\] to 'burst' in time"):
            job.ask(0.3, **BURST)
    assert time.monotonic() - begin < 120  # the call hangs for ten minutes
    assert not psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=HANG_S)[1]


def test_an_unknown_order_is_refused() -> None:
    with opened("good") as job, pytest.raises(JobLost, match="unknown order 'dance'"):
        job.ask(HANG_S, do="dance")


def test_a_broken_protocol_is_reported() -> None:
    with opened("babbles") as job, pytest.raises(JobLost, match="broken protocol"):
        job.ask(HANG_S, **OPEN)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("leaves at once", r"ended before all ranks were ready\n  \| no such fabric"),
        ("counts wrong", "not one job of 1: rank 0 of 7 reported"),
    ],
)
def test_a_job_that_does_not_start(behaviour: str, message: str) -> None:
    with pytest.raises(JobLost, match=message):
        RaceJob(plan_of(behaviour))


def test_a_job_whose_ranks_stay_away() -> None:
    with pytest.raises(JobLost, match="only 0 of 2 ranks became ready in time"):
        RaceJob(plan_of("stays away", 2), start_seconds=0.3)


def test_a_program_that_is_missing() -> None:
    with pytest.raises(JobLost, match="cannot start no-such-mpiexec"):
        RaceJob(JobPlan("fake", {}, 1, lambda join: [["no-such-mpiexec"]]))


def test_strangers_are_turned_away() -> None:
    def commands(join: str) -> Sequence[Sequence[str]]:
        host, _, port = join.partition("/")[0].rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b'{"token":"guess","rank":0,"size":1,"pid":1,"about":""}\n')
        return plan_of("good").commands(join)

    job = RaceJob(JobPlan("fake", {"fake": "way"}, 1, commands, plan_of("good").environ))
    assert job.about == "fake good"
    job.close()
