"""Sockets, algorithms and levels between hosts made of network namespaces; what a dead host does to striped links."""

from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.cases import namespace as namespace_cases
from tests.jobs.launching import LOST_WITHIN_S, TIMEOUT_S, Job, Rank
from tests.namespaces import machines

PORTS = itertools.count(29500)  # the namespaces are fresh: every port is free


@pytest.fixture(scope="module")
def spaces() -> Iterator[dict[str, str]]:
    with machines(3) as made:
        yield made


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Processes that join one world after the other, each in the namespace that it is given."""
    with Job(4, tmp_path_factory.mktemp("namespaces")) as job:
        yield job


def send_all(
    function: Callable[..., Any], ranks: Sequence[Rank], world: tuple[Mapping[str, str], Sequence[int]], **more: str
) -> None:
    """Send a function to the ranks of one world; `world` are the namespaces, and the one of each rank."""
    spaces, hosts = world
    store, names = f"{next(iter(spaces))}:{next(PORTS)}", list(spaces.values())
    for number, (rank, host) in enumerate(zip(ranks, hosts, strict=True)):
        environ = {
            "RINGTUNE_RANK": str(number),
            "RINGTUNE_SIZE": str(len(ranks)),
            "RINGTUNE_STORE": store,
            "RINGTUNE_HOSTNAME": f"namespace-{host}",
            **more,
        }
        rank.send(function, {"space": names[host], "environ": environ})


def answers(job: Job, spaces: Mapping[str, str], hosts: Sequence[int], **environ: str) -> list[dict[str, Any]]:
    """Run one world; `hosts` gives the namespace of each rank."""
    ranks = job.ranks[: len(hosts)]
    send_all(namespace_cases.reduce_in, ranks, (spaces, hosts), **environ)
    return job.results(ranks)


@pytest.mark.parametrize("algorithm", ["ring", "flat", "recursive-doubling", "halving-doubling", "tree"])
def test_every_algorithm_is_exact_over_striped_links(algorithm: str, four: Job, spaces: dict[str, str]) -> None:
    found = answers(four, spaces, [0, 1, 2], RINGTUNE_ALGORITHM=algorithm, RINGTUNE_SOCKETS_PER_PEER="3")
    assert len(found) == 3
    assert all(answer["digests"] == found[0]["digests"] and answer["transports"] == ["tcp"] for answer in found)


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 2]])
def test_levels_are_exact(hosts: list[int], four: Job, spaces: dict[str, str]) -> None:
    found = answers(four, spaces, hosts, RINGTUNE_HIERARCHICAL_ALLREDUCE="on")
    assert len(found) == 4
    assert all(answer["digests"] == found[0]["digests"] for answer in found)
    assert {word for answer in found for word in answer["transports"]} == {"shm", "tcp"}


@pytest.mark.parametrize("ending", [signal.SIGKILL, None])
def test_a_dead_host_is_noticed_within_two_seconds(
    ending: signal.Signals | None, spaces: dict[str, str], tmp_path: Path
) -> None:
    """None: the rank closes one of its four sockets to every peer, as a middlebox that forgets a connection does."""
    with Job(3, tmp_path) as job:
        world = (spaces, [0, 1, 2])
        send_all(namespace_cases.reduce_until_lost, job.ranks, world, RINGTUNE_SOCKETS_PER_PEER="4")
        for rank in job.ranks:
            rank.line_with("ready")
        begin = end = time.monotonic()
        if ending is not None:
            job.ranks[2].signal(ending)
        else:
            begin, end = break_one_socket(list(spaces.values())[2])
        for kind, at in job.results(job.ranks[:2]):
            assert kind == "PeerLost"
            assert begin < at < end + LOST_WITHIN_S


def break_one_socket(space: str) -> tuple[float, float]:
    """Resets a data connection of the rank in this namespace, and gives the moments before and after it.

    Nothing is queued anywhere between two transfers, and the connections to the store may break unnoticed: only one
    with a piece of a tensor in its queues is sure to carry data.
    """
    if not resets_reach_a_connection():
        pytest.skip("this kernel cannot reset a connection from outside (ss -K)")
    listing = ["ip", "netns", "exec", space, "ss", "-tnH", "state", "established"]
    queued, addresses, limit = 0, [""], time.monotonic() + TIMEOUT_S
    while queued < 64 << 10:
        assert time.monotonic() < limit, "no connection of this rank carries data"
        lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines()
        queued, addresses = max((sum(map(int, line.split()[:2])), line.split()[2:4]) for line in lines)
    local, remote = addresses
    command = ["ip", "netns", "exec", space, "ss", "-K", "src", local, "dst", remote]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert remote.rpartition(":")[0] in done.stdout, f"{local} to {remote} was not there to be reset: {done}"
    return begin, time.monotonic()


def resets_reach_a_connection() -> bool:
    """Whether this kernel resets connections from outside: seen on one of our own, so that no skip hides a failure."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        host, port = ours.getsockname()
        subprocess.run(["ss", "-K", "src", f"{host}:{port}"], capture_output=True, check=False)
        try:
            ours.send(b"still there")
        except OSError:
            return True
        return False
