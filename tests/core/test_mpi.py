"""The ways by which rank 0's word reaches the other ranks of an MPI job."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ringtune.bootstrap import mpi
from ringtune.bootstrap.deadline import Deadline
from ringtune.bootstrap.placement import Placement
from ringtune.errors import ConfigError, RingtuneError, Timeout

JOB = Placement(rank=1, size=3, local_rank=1, local_size=2, launcher="pmi")
WORD = b'["10.0.0.1", 4711, "the secret"]'


class Manager:
    """A process manager that speaks PMI-1 as hydra of MPICH 5 does, with a thread for each rank."""

    def __init__(self, size: int, refused: str = "") -> None:
        self.refused = refused
        self.values: dict[str, str] = {}
        self.barrier = threading.Barrier(size)
        self.ends = [socket.socketpair() for _ in range(size)]
        self.said: list[list[str]] = [[] for _ in range(size)]
        self.threads = [threading.Thread(target=self._serve, args=(rank,)) for rank in range(size)]
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        self.barrier.abort()
        for own, other in self.ends:
            other.close()
            own.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for own, _ in self.ends:
            own.close()

    def _serve(self, rank: int) -> None:
        with self.ends[rank][0].makefile("rw", encoding="ascii", newline="\n") as lines:
            for line in lines:
                words = dict(word.split("=", 1) for word in line.split())
                self.said[rank].append(words["cmd"])
                try:
                    answer = self._answer(words)
                except threading.BrokenBarrierError:
                    return
                lines.write(answer + "\n")
                lines.flush()

    def _answer(self, words: dict[str, str]) -> str:
        command = words["cmd"]
        if command == self.refused:
            return f"cmd={command}_result rc=-1 msg=refused"
        if command == "init":
            return "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2"
        if command == "get_my_kvsname":
            return "cmd=my_kvsname rc=0 kvsname=kvs_11416_0_1702353847_vm"
        if command == "put":
            self.values[words["key"]] = words["value"]
            return "cmd=put_result rc=0"
        if command == "barrier_in":
            self.barrier.wait()
            return "cmd=barrier_out tag=0"
        return f"cmd=get_result rc=0 value={self.values[words['key']]}"


@contextmanager
def managed(size: int, refused: str = "") -> Iterator[tuple[Manager, list[mpi.Share]]]:
    """A manager, and the way of each rank to it."""
    manager = Manager(size, refused)
    try:
        yield manager, [mpi.way(JOB, {"PMI_FD": str(other.fileno())}) for _, other in manager.ends]
    finally:
        manager.close()


@pytest.fixture(autouse=True)
def _no_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)


def test_a_word_by_pmi() -> None:
    with managed(3) as (manager, ways):
        for _ in range(2):  # MPI itself may have begun there, or begin later
            found: dict[int, bytes] = {}

            def ask(rank: int, found: dict[int, bytes] = found) -> None:
                found[rank] = mpi.within(ways[rank], WORD if rank == 0 else None, Deadline.after_ns(30_000_000_000))

            ranks = [threading.Thread(target=ask, args=(rank,)) for rank in range(3)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            assert found == dict.fromkeys(range(3), WORD)
        once = ["init", "get_my_kvsname", "barrier_in", "get"]
        assert manager.said[1] == once * 2 and "finalize" not in manager.said[0]
        assert all(value.isascii() and value.isalnum() for value in manager.values.values())


def test_ranks_that_do_not_come_are_waited_for_no_longer_than_the_start_timeout() -> None:
    with managed(2) as (_, ways), pytest.raises(Timeout, match=r"not all ranks came .*RINGTUNE_START_TIMEOUT"):
        mpi.within(ways[0], WORD, Deadline.after_ns(200_000_000))


def test_a_refusal_of_the_manager_is_told() -> None:
    with (
        managed(1, "put") as (_, ways),
        pytest.raises(RingtuneError, match="answered 'cmd=put_result rc=-1 msg=refused' to PMI's command 'put'"),
    ):
        mpi.within(ways[0], WORD, Deadline.after_ns(30_000_000_000))


def test_mpi4py_carries_the_word_where_the_script_has_loaded_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SimpleNamespace(Get_size=lambda: 3, bcast=lambda word, root: (WORD, word, root))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(COMM_WORLD=world))
    found: Any = mpi.way(JOB, {"PMI_FD": "1000000"})(None)
    assert found == (WORD, None, 0)


def test_without_any_way_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "_PMIX_LIBRARY", "libpmix-that-is-not-there.so.2")
    for environ in ({}, {"PMI_FD": ""}, {"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}):
        with pytest.raises(ConfigError, match=r"spans several hosts and nothing says where .*RINGTUNE_STORE=host:port"):
            mpi.way(JOB, environ)
