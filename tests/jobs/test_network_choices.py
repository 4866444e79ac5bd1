"""Sockets, algorithms and levels between hosts made of network namespaces; what a dead host does to striped links."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.launching import LOST_WITHIN_S, TIMEOUT_S
from tests.namespaces import machines

ROOT = Path(__file__).resolve().parents[2]
RANK = [sys.executable, "-m", "tests.jobs.namespace_rank"]
LOSS = [sys.executable, "-m", "tests.jobs.namespace_loss"]


@pytest.fixture(scope="module")
def spaces() -> Iterator[dict[str, str]]:
    with machines(3) as made:
        yield made


def start(space: str, words: Sequence[str], **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["ip", "netns", "exec", space, *words],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answers(spaces: Mapping[str, str], hosts: Sequence[int], **environ: str) -> list[dict[str, Any]]:
    """Run one world; `hosts` gives the namespace of each rank."""
    store, names = next(iter(spaces)), list(spaces.values())
    ranks = [
        start(
            names[host],
            [*RANK, str(rank), store, "29500", str(len(hosts))],
            RINGTUNE_HOSTNAME=f"namespace-{host}",
            **environ,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        outputs = [rank.communicate(timeout=150) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(error for _, error in outputs)
    return [json.loads(line) for output, _ in outputs for line in output.splitlines()]


@pytest.mark.parametrize("algorithm", ["ring", "flat", "recursive-doubling", "halving-doubling", "tree"])
def test_every_algorithm_is_exact_over_striped_links(algorithm: str, spaces: dict[str, str]) -> None:
    found = answers(spaces, [0, 1, 2], RINGTUNE_ALGORITHM=algorithm, RINGTUNE_SOCKETS_PER_PEER="3")
    assert len(found) == 3
    assert all(answer["digests"] == found[0]["digests"] and answer["transports"] == ["tcp"] for answer in found)


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 2]])
def test_levels_are_exact(hosts: list[int], spaces: dict[str, str]) -> None:
    found = answers(spaces, hosts, RINGTUNE_HIERARCHICAL_ALLREDUCE="on")
    assert len(found) == 4
    assert all(answer["digests"] == found[0]["digests"] for answer in found)
    assert {word for answer in found for word in answer["transports"]} == {"shm", "tcp"}


@pytest.mark.parametrize("ending", [signal.SIGKILL, None])
def test_a_dead_host_is_noticed_within_two_seconds(ending: signal.Signals | None, spaces: dict[str, str]) -> None:
    """None: the rank closes one of its four sockets to every peer, as a middlebox that forgets a connection does."""
    store = f"{next(iter(spaces))}:29600"
    names = list(spaces.values())
    ranks = [
        start(name, [*LOSS, str(rank), "3", store], RINGTUNE_SOCKETS_PER_PEER="4") for rank, name in enumerate(names)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
        begin = end = time.monotonic()
        if ending is not None:
            ranks[2].send_signal(ending)
        else:
            begin, end = break_one_socket(names[2])
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks[:2]]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for output in outputs:
        found = json.loads(output.splitlines()[-1])
        assert found["type"] == "PeerLost", output
        assert begin < found["at"] < end + LOST_WITHIN_S, output


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
