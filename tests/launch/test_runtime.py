"""The launcher with the real runtime: ranks meet through its store, on one host and on several."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import find_tool
from tests.launch.conftest import Jobs

pytest.importorskip("ringtune._native", exc_type=ImportError)
pytest.importorskip("torch")

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


def test_two_names_of_this_machine_are_two_hosts(jobs: Jobs) -> None:
    result = jobs.run("-H", "localhost:2,127.0.0.1:1", "--no-run-dir", sys.executable, jobs.script(SUM))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] sum 0 0 2 0 2", "[1] sum 1 1 2 0 1", "[2] sum 2 0 1 1 2"]


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
    find_tool("ip")
    if os.geteuid() != 0:
        pytest.skip("needs root for network namespaces")
    tag = f"rt{os.getpid() % 10000}"
    bridge, net = f"{tag}b", f"10.{200 + os.getpid() % 50}.{os.getpid() % 250}"
    spaces = {f"{net}.{number}": f"{tag}n{number}" for number in (2, 3)}
    commands = [f"link add {bridge} type bridge", f"addr add {net}.1/24 dev {bridge}", f"link set {bridge} up"]
    for address, space in spaces.items():
        outside, inside = f"{space}o", f"{space}i"
        commands += [
            f"netns add {space}",
            f"link add {outside} type veth peer name {inside} netns {space}",
            f"link set {outside} master {bridge} up",
            f"-n {space} addr add {address}/24 dev {inside}",
            f"-n {space} link set {inside} up",
            f"-n {space} link set lo up",
        ]
    try:
        for command in commands:
            made = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if made.returncode != 0:
                pytest.skip(f"no network namespaces here: ip {command}: {made.stderr.strip()}")
        yield spaces
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


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
        "-H", f"{hosts},localhost:1", "--no-run-dir", "--start-timeout", "30", sys.executable, jobs.script(SUM),
        environ={"PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] sum {rank} 0 1 {rank} 3" for rank in range(3)]
