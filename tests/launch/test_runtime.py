"""The launcher with the real runtime: ranks meet through its store, on one host and on several."""

from __future__ import annotations

import signal
import sys
import textwrap

import pytest

from tests.conftest import needs
from tests.launch.conftest import Jobs

needs("ringtune._native")
needs("torch")

SUM = """
import torch, ringtune.torch as hvd
hvd.init()
total = hvd.allreduce(torch.full((70_001,), float(rank + 1)), op=hvd.Sum, name="x")
assert bool((total == size * (size + 1) / 2).all())
print("sum", rank, hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
hvd.shutdown()
"""


def test_one_host(jobs: Jobs) -> None:
    result = jobs.run_script(2, SUM)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] sum 0 0 2 0 1", "[1] sum 1 1 2 0 1"]


@pytest.mark.slow
def test_two_names_of_this_machine_are_one_host(jobs: Jobs) -> None:
    result = jobs.run("-H", "localhost:2,127.0.0.1:1", "--no-run-dir", sys.executable, jobs.script(SUM))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] sum {rank} {rank} 3 0 1" for rank in range(3)]


JOIN = """
import time, ringtune.numpy as hvd
begin = time.monotonic()
try:
    hvd.init()
except hvd.HorovodInternalError as error:
    print(f"told after {time.monotonic() - begin:.0f} s: {error}")
"""


def test_ranks_in_init_are_told_of_one_that_ended_with_code_0(jobs: Jobs) -> None:
    result = jobs.run_script(3, "if rank == 1: sys.exit(0)" + JOIN)
    told = [line for line in result.stdout.splitlines() if "told after" in line]
    assert len(told) == 2, result.stdout + result.stderr
    assert all("rank 1 on localhost ended with code 0 and did not join the job" in line for line in told), told


def test_ranks_in_init_are_told_why_another_cannot_join(jobs: Jobs) -> None:
    text = """
    if rank == 1:
        os.environ["RINGTUNE_INTERFACE_ADDRESS"] = "192.0.2.1"  # of no interface
    """
    result = jobs.run_script(3, textwrap.dedent(text) + JOIN.replace("hvd.HorovodInternalError", "Exception"))
    told = [line for line in result.stdout.splitlines() if "told after" in line]
    assert len(told) == 3, result.stdout + result.stderr
    assert all("192.0.2.1" in line for line in told), told
    assert sum("rank 1 on host localhost could not join the job: " in line for line in told) >= 2, told


def test_a_rank_whose_init_is_interrupted_ends_with_its_own_code(jobs: Jobs) -> None:
    """The thread that waits for the others is told that one ends while this process ends, and must not abort it."""
    text = """
    import signal, time, ringtune.numpy as hvd
    if rank == 0:
        def stop(*_):
            open("interrupted", "w").close()
            sys.exit(5)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        class Late:
            def __del__(self):
                time.sleep(1)  # at the very end of the interpreter
        kept = Late()
        hvd.init()
    while not os.path.exists("interrupted"):
        time.sleep(0.01)
    os._exit(5)
    """
    result = jobs.run_script(2, text)
    assert result.returncode == 5, result.stderr
    assert "was killed" not in result.stderr and "terminate" not in result.stderr, result.stderr


@pytest.mark.slow
def test_lost_rank_is_named_by_survivors_and_launcher(jobs: Jobs) -> None:
    result = jobs.run_script(
        2,
        """
        import torch, ringtune.torch as hvd
        hvd.init()
        hvd.allreduce(torch.ones(3), name="before")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(torch.ones(3), name="after")
        """,
    )
    assert result.returncode == 128 + signal.SIGKILL
    assert "PeerLost" in result.stderr
    assert "rank 1 on localhost was killed by SIGKILL" in result.stderr
