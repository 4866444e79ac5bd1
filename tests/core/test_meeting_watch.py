"""Ranks that meet are given the name of the one that ended first, not of those that ended because of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from ringtune import native
from ringtune.bootstrap.interfaces import loopback
from ringtune.bootstrap.meeting_watch import MeetingWatch
from ringtune.bootstrap.placement import Placement
from ringtune.errors import PeerLost
from tests.conftest import needs
from tests.launch.conftest import wait_for

needs("ringtune._native")
SECRET, JOB = "a secret of the job", "job.1"
SAID = "rank 1 on host b could not join the job: waited 10 s for rank 0"


class Meeting:
    """A store, and the clients and watches of three ranks."""

    def __init__(self) -> None:
        self.server = native.load().StoreServer(loopback(), 0, SECRET)
        self.stores: list[Any] = []
        self.watches = [MeetingWatch(JOB) for _ in range(3)]
        for rank, watch in enumerate(self.watches):
            store = native.load().StoreClient(loopback(), self.server.port, SECRET, 10_000_000_000, "rank", rank, JOB)
            self.stores.append(store)
            watch.begin(store, Placement(rank, 3, rank, 3, f"host-{rank}"))

    def end(self, rank: int) -> None:
        """The rank's process ends."""
        self.watches[rank]._store = self.stores[rank] = None
        gc.collect()  # the frames of what was raised hold a store, too
        other = next(store for store in self.stores if store is not None)
        wait_for(lambda: b"rank %d on" % rank in other.get(f"{JOB}/ended_early", 10_000_000_000))

    def answer(self, rank: int) -> str:
        """Return what a rank gets when it looks as often as it needs."""
        self.watches[rank].look()
        with pytest.raises(PeerLost) as told:
            self.watches[rank].look()
        return str(told.value)


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting()
    yield made
    made.server.close()


def test_nobody_fails_while_all_are_there(meeting: Meeting) -> None:
    for _ in range(3):
        for watch in meeting.watches:
            watch.look()


def test_all_name_the_first(meeting: Meeting) -> None:
    meeting.end(2)
    first = meeting.answer(1)
    assert first == "rank 2 on host-2 ended while the ranks of the job met, and will not come"
    meeting.end(1)
    assert meeting.answer(0) == first


def test_a_rank_that_said_why_it_could_not_join_is_quoted(meeting: Meeting) -> None:
    meeting.stores[1].refuse(SAID, f"{JOB}/")
    meeting.end(1)
    assert meeting.answer(2) == meeting.answer(0) == SAID


def test_the_launchers_word_comes_first(meeting: Meeting) -> None:
    meeting.server.refuse_waiting("rank 1 on host-1 was killed by SIGKILL")
    meeting.end(1)
    assert "rank 1 on host-1 was killed by SIGKILL" in meeting.answer(0)
