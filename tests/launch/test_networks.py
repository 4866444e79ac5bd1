"""Jobs between hosts made of network namespaces: where their ranks meet, and at which addresses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ringtune.errors import RingtuneError
from ringtune.launch.routes import LAUNCHER, Probe, Routes, _tries, choose
from tests.conftest import missing, needs
from tests.launch.conftest import HANG_S, Jobs, wait_for
from tests.namespaces import joined, machines

needs("ringtune._native")

SUM = """
import numpy, ringtune.numpy as hvd
hvd.init()
total = hvd.allreduce(numpy.full(70_001, rank + 1.0), op=hvd.Sum, name="x")
assert bool((total == size * (size + 1) / 2).all())
print("sum", hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
hvd.shutdown()
"""


def by_ssh(jobs: Jobs, spaces: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose ssh enters the namespace of a host's name."""
    folder = jobs.folder / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(
        f"#!{sys.executable}\nimport os, sys\nhost, command = sys.argv[-2:]\n"
        f"space = {json.dumps(dict(spaces))}[host]\n"
        "os.execvp('ip', ['ip', 'netns', 'exec', space, 'sh', '-c', command])\n",
        encoding="utf-8",
    )
    (folder / "ssh").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture(params=["IPv4", "IPv6"])
def two_machines(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Two network namespaces joined by a bridge; address -> namespace."""
    if request.param == "IPv6" and not Path("/proc/net/if_inet6").exists():
        missing("needs IPv6")
    with machines(2, ipv6=request.param == "IPv6") as spaces:
        yield spaces


@pytest.mark.slow
@pytest.mark.parametrize("here", [True, False])
def test_two_machines(jobs: Jobs, two_machines: dict[str, str], here: bool) -> None:
    hosts = [f"[{address}]:1" for address in two_machines] + ["localhost:1"] * here
    result = jobs.run(
        "-H", ",".join(hosts), "--no-run-dir", "--start-timeout", "120", sys.executable, jobs.script(SUM),
        environ=by_ssh(jobs, two_machines),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    count = len(hosts)
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] sum {rank} 0 1 {rank} {count}" for rank in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("master", [True, False])
def test_hosts_find_the_network_that_they_have_in_common(jobs: Jobs, master: bool) -> None:
    """Each host is in a management network with the launcher's; only the third network has both."""
    with machines(1) as first, machines(1) as second:
        spaces = {**first, **second}
        with joined(list(spaces.values())) as common:
            names = {"blue.invalid": next(iter(first.values())), "red.invalid": next(iter(second.values()))}
            script = jobs.script('print(os.environ["MASTER_ADDR"])' if master else SUM)
            hosts = ",".join(f"{name}:1" for name in (names if master else spaces))
            environ = by_ssh(jobs, {**spaces, **names})
            result = jobs.run(
                "-H", hosts, "--no-run-dir", "--start-timeout", "60", sys.executable, script, environ=environ
            )
    assert result.returncode == 0, result.stderr
    expected = [f"[{rank}] {common[0]}" for rank in range(2)] if master else ["[0] sum 0 0 1 0 2", "[1] sum 1 0 1 1 2"]
    assert sorted(result.stdout.splitlines()) == expected


def test_hosts_without_a_common_network_are_told_so(jobs: Jobs) -> None:
    with machines(1) as first, machines(1) as second:
        (blue, red), environ = [*first, *second], by_ssh(jobs, {**first, **second})
        result = jobs.run("-H", f"{blue}:1,{red}:1", "--no-run-dir", "true", environ=environ)
    assert result.returncode == 1
    assert result.stderr == (
        f"ringtune: {red} reaches {blue} at none of its addresses ({blue}): does a firewall stand between them? "
        "TCP must be open between the hosts of a job; --network-interface names the network without trying\n"
    )


@pytest.mark.slow
def test_a_host_whose_own_name_leads_to_its_loopback(jobs: Jobs) -> None:
    """Debian's ``127.0.1.1 <hostname>``: rank 0 serves the store under its own name."""
    with machines(2) as spaces:
        (own, _), processes = spaces, []
        for rank, space in enumerate(spaces.values()):
            names = jobs.folder / f"hosts{rank}"
            names.write_text(f"127.0.0.1 localhost\n{'127.0.1.1' if rank == 0 else own} blue\n", encoding="utf-8")
            environ = {"RINGTUNE_RANK": str(rank), "RINGTUNE_SIZE": "2", "RINGTUNE_STORE": "blue:29400"}
            mounted = f"mount --bind {names} /etc/hosts && exec {sys.executable} {jobs.script(SUM)}"
            processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", space, "unshare", "-m", "sh", "-c", mounted],
                    env={**os.environ, **environ, "RINGTUNE_HOSTNAME": f"host{rank}", "RINGTUNE_START_TIMEOUT": "60"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        found = [process.communicate(timeout=HANG_S) for process in processes]
    assert [out for out, _ in found] == ["sum 0 0 1 0 2\n", "sum 1 0 1 1 2\n"], found


# -- the choice, without hosts ----------------------------------------------------------------------------------------


def test_what_the_route_suggests_stays_where_it_works() -> None:
    addresses = {LAUNCHER: ["L1", "L2"], "a": ["a1", "a2"], "b": ["b1", "b2"]}
    reached = {
        "a": {(LAUNCHER, "L1"): "a2", (LAUNCHER, "L2"): "a1", ("b", "b1"): "a1", ("b", "b2"): "a1"},
        "b": {(LAUNCHER, "L1"): "b1", (LAUNCHER, "L2"): "b1", ("a", "a1"): "b1", ("a", "a2"): "b1"},
    }
    assert choose(addresses, reached, {"a": "L2", "b": "L1"}) == Routes({"a": "L2", "b": "L1"}, {})


def test_an_address_of_the_launcher_that_a_host_does_not_reach_is_not_given_to_it() -> None:
    reached = {"a": {(LAUNCHER, "L1"): None, (LAUNCHER, "L2"): "a1"}}
    assert choose({LAUNCHER: ["L1", "L2"], "a": ["a1"]}, reached, {"a": "L1"}) == Routes({"a": "L2"}, {})
    with pytest.raises(RingtuneError, match=r"^a reaches the launcher's machine at none of its addresses \(L1\)"):
        choose({LAUNCHER: ["L1"], "a": ["a1"]}, {"a": {(LAUNCHER, "L1"): None}}, {"a": "L1"})


def test_an_address_that_only_some_reach_is_not_chosen() -> None:
    addresses = {LAUNCHER: ["L1"], "a": ["a1", "a2"], "b": ["b1"], "c": ["c1"]}
    reached = {
        "a": {(LAUNCHER, "L1"): "a1", ("b", "b1"): "a1", ("c", "c1"): "a1"},
        "b": {(LAUNCHER, "L1"): "b1", ("a", "a1"): "b1", ("a", "a2"): "b1", ("c", "c1"): "b1"},
        "c": {(LAUNCHER, "L1"): "c1", ("a", "a1"): None, ("a", "a2"): "c1", ("b", "b1"): "c1"},
    }
    assert choose(addresses, reached, dict.fromkeys("abc", "L1")).own == {"a": "a2"}


@pytest.mark.parametrize("count", [1, 2, 3, 9, 40])
@pytest.mark.parametrize("launcher_has_ranks", [True, False])
def test_every_host_is_tried_by_others_and_tries_few(count: int, launcher_has_ranks: bool) -> None:
    others = [f"h{number}" for number in range(count)]
    tries = _tries(others, launcher_has_ranks=launcher_has_ranks)
    hosts = [LAUNCHER] * launcher_has_ranks + others
    assert list(tries) == hosts and all(name not in tried for name, tried in tries.items())
    assert all(LAUNCHER in tries[name] for name in others)
    if len(hosts) > 1:
        assert {one for tried in tries.values() for one in tried} >= set(hosts)
    assert all(len(tried) <= 9 for tried in tries.values())


def test_what_a_probe_leaves_behind_does_not_keep_the_launcher(tmp_path: Path) -> None:
    """An ssh that shares its connection starts another one, which may hold the probe's output open."""
    file = tmp_path / "pid"
    probe = Probe(["sh", "-c", f"sleep 300 & echo $! >{file}.part; mv {file}.part {file}; wait"])
    wait_for(file.exists)
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        probe.wait(0.1)
    probe.close()
    assert time.monotonic() - begin < 100, "what is left behind sleeps 300 s"
    os.kill(int(file.read_text()), signal.SIGKILL)
