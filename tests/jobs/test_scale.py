"""More ranks than cores: real processes on this host, whose ready requests go up a tree.

16 ranks run with all tests, 64 with `make test-long`. Everything blocks instead of spinning, so what bounds a test is
the work of all ranks on few cores: the limits below are ten times and more what two cores took.
"""

from __future__ import annotations

import itertools
import math
import re
import signal
import time
from collections.abc import Callable

import pytest

import ringtune.torch as hvd
from tests.jobs.cases import common
from tests.jobs.cases import scale as scale_cases
from tests.jobs.cases import set as set_cases
from tests.jobs.cases import step_schedule as step_schedule_cases
from tests.jobs.launching import LOST_WITHIN_S, Job

GetJob = Callable[..., Job]
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])
SIZES = pytest.mark.parametrize("size", [16, pytest.param(64, marks=pytest.mark.long)])
BURSTS = {1 << 10: 20, 64 << 10: 10, 1 << 20: 5}  # bytes of an allreduce: how many make a burst
COLLAPSE = 10.0  # ranks that starve each other by spinning: a hundred times what two ranks use, and more
CLOSED_WITHIN_S = 9.0  # a rank that others need waits ten seconds for them


def patience(size: int) -> float:
    """Return how long anything may take that all ranks do, in seconds."""
    return 60.0 + 2 * size


def start(fresh: GetJob, size: int, transport: str, **settings: object) -> Job:
    job = fresh(size, join=False, transport=transport, start_timeout=patience(size), **settings)
    assert job.run(common.open_session, patience(size)) == [(rank, size) for rank in range(size)]
    return job


@pytest.mark.slow
@TRANSPORTS
@SIZES
def test_collectives_join_and_end(size: int, transport: str, fresh: GetJob) -> None:
    job = start(fresh, size, transport)
    limit = patience(size)
    all_ranks = sum(range(size))
    assert job.run(scale_cases.sums, limit, rounds=6, tensors=5) == [[all_ranks + size * i for i in range(5)]] * size
    assert len(set(job.run(common.allreduce, limit, dtype="float32", count=20_000, op=hvd.Sum))) == 1
    assert len(set(job.run(common.broadcast, limit, dtype="int64", count=999, root=size - 1))) == 1
    assert len(set(job.run(common.allgather, limit, dtype="float32", rows=[i % 3 for i in range(size)], width=5))) == 1
    steps = [rank % 4 for rank in range(size)]
    for results, last, after in job.run(set_cases.join_after, limit, steps=steps, op=hvd.Sum, dtype="float32"):
        assert after == size and 0 <= last < size
        for step, (value, negative) in enumerate(results):
            assert value == -negative == sum(rank + 1 for rank in range(size) if steps[rank] > step)
    took = job.run(common.leave, limit, delay_s=0.0)
    assert max(took) < CLOSED_WITHIN_S, "ranks waited for others that had left"
    assert job.run(common.close_session, limit) == [False] * size
    assert not any(re.search("WARNING|ERROR", rank.stderr()) for rank in job.ranks)


@pytest.mark.slow
@TRANSPORTS
@SIZES
@pytest.mark.parametrize("victim", [1, -1], ids=["middle", "leaf"])
def test_a_killed_rank_is_told_to_all_within_two_seconds(victim: int, size: int, transport: str, fresh: GetJob) -> None:
    victim %= size
    job = start(fresh, size, transport)
    job.start(common.until_failure)
    time.sleep(0.5)
    job.ranks[victim].signal(signal.SIGKILL)
    killed_at = time.monotonic()
    for number, result in enumerate(job.collect(patience(size))):
        if number == victim:
            assert result is None
            continue
        ((kind, message, raised_at),) = result
        assert kind == "PeerLost" and re.search(rf"rank {victim}\b", message), f"rank {number}: {message}"
        assert raised_at - killed_at < LOST_WITHIN_S, f"rank {number}"


def test_more_ranks_than_cores_do_not_spin_each_other_off_them(fresh: GetJob) -> None:
    # Processor time, which other load on the machine hardly changes: who spins uses what others need. Jobs take turns.
    jobs = {size: fresh(size) for size in (2, 4, 8)}
    used: dict[tuple[int, int], list[float]] = {}
    for _ in range(2):
        for (size_bytes, calls), (size, job) in itertools.product(BURSTS.items(), jobs.items()):
            shares = job.run(scale_cases.processor_time, 60.0, size_bytes=size_bytes, calls=calls)
            used.setdefault((size_bytes, size), []).append(sum(shares) / size)
    for (size_bytes, size), seconds in used.items():
        assert min(seconds) < COLLAPSE * min(used[size_bytes, 2]), f"{size} ranks, {size_bytes} bytes: {used}"


@SIZES
def test_no_rank_but_the_first_has_a_connection_to_every_other(size: int, fresh: GetJob) -> None:
    job = start(fresh, size, "tcp")
    job.run(scale_cases.sums, patience(size), rounds=1, tensors=1)
    found = job.run(scale_cases.sockets, patience(size))
    # A listening one, the store, the monitor's; parent and children; the ring, and an allreduce's partners: log n.
    most = 4 + 9 + 2 + 2 * math.ceil(math.log2(size))
    assert max(found[1:]) <= most, found


def test_a_stall_names_the_ranks_that_are_missing_below_others(fresh: GetJob) -> None:
    job = start(fresh, 16, "shm", stall_check_time_seconds=0.5)
    late = (2, 15)
    for number, rank in enumerate(job.ranks):
        if number not in late:
            rank.send(common.wait_for_all, {"name": "late"})
    # On a starved machine the first warnings may name others that have not come yet; the later ones do not.
    job.ranks[0].line_with(r"allreduce\.late.*ranks 2, 15\b")
    for number in late:
        job.ranks[number].send(common.wait_for_all, {"name": "late"})
    assert job.collect(patience(16)) == [([16.0, 16.0],)] * 16


def test_control_messages_stay_on_the_links_of_the_tree(fresh: GetJob) -> None:
    job = start(fresh, 16, "tcp", step_schedule=0)
    found = [min(one) for one in job.run(scale_cases.control_messages, patience(16), rounds=20)]
    # A message each way over every link; rank 0 has 8 of them, rank 1 two, the last of a subtree one. The end of a wait
    # may cost one more; the counters may lack the last cycle.
    assert 15 <= found[0] <= 16 + 8, found
    assert max(found[1:]) <= 4 + 2, found


def test_repeated_steps_need_no_message_whatever_the_shape_of_the_tree(fresh: GetJob) -> None:
    job = start(fresh, 16, "shm")
    for windows in job.run(step_schedule_cases.blocking, patience(16), windows=4):
        assert (0, 0) in windows
