"""The launcher with the real runtime: ranks meet through its store, on one host and on several."""

from __future__ import annotations

import signal
import sys

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
