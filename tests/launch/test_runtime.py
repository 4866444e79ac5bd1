"""The launcher with the real runtime: ranks meet through its store, on one host and on several."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import needs
from tests.launch.conftest import Jobs
from tests.namespaces import machines

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
def test_two_names_of_this_machine_are_two_hosts(jobs: Jobs) -> None:
    result = jobs.run("-H", "localhost:2,127.0.0.1:1", "--no-run-dir", sys.executable, jobs.script(SUM))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] sum 0 0 2 0 2", "[1] sum 1 1 2 0 1", "[2] sum 2 0 1 1 2"]


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


@pytest.fixture
def two_machines() -> Iterator[dict[str, str]]:
    """Two network namespaces joined by a bridge; address -> namespace."""
    with machines(2) as spaces:
        yield spaces


@pytest.mark.slow
def test_two_machines(jobs: Jobs, two_machines: dict[str, str]) -> None:
    """Every rank in a namespace of its own or here; an ssh on PATH enters the namespaces."""
    folder = jobs.folder / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(
        f"#!{sys.executable}\nimport os, sys\nhost, command = sys.argv[-2:]\n"
        f"space = {json.dumps(two_machines)}[host]\n"
        "os.execvp('ip', ['ip', 'netns', 'exec', space, 'sh', '-c', command])\n",
        encoding="utf-8",
    )
    (folder / "ssh").chmod(0o755)
    hosts = ",".join(f"{address}:1" for address in two_machines)
    result = jobs.run(
        "-H", f"{hosts},localhost:1", "--no-run-dir", "--start-timeout", "120", sys.executable, jobs.script(SUM),
        environ={"PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] sum {rank} 0 1 {rank} 3" for rank in range(3)]
