"""Publishes the states of all ranks to rank 0 through the rendezvous store, over connections that exist anyway."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ringtune.errors import RingtuneError
from ringtune.meters.durations import Durations
from ringtune.meters.exposure import Blocked, Exposed
from ringtune.meters.sample import Sample
from ringtune.meters.state import RankState, observe

if TYPE_CHECKING:
    from ringtune.meters.alerts import Alerts
    from ringtune.session import Session

MOST_MESSAGES = 64
"""Messages that all ranks together send to the store for each sample; more ranks send less often."""

_TOLD = 4
"""How often each step is told."""

_FETCH_TIMEOUT_NS = 200_000_000
"""How long a read waits for the state of a rank that has not published one yet."""


def _key(session: Session, rank: int) -> str:
    return f"{session.job}/metrics/{rank}"


class Publisher:
    """A sink of samples that puts this rank's state into the store; rank 0 keeps it.

    Args:
        session: The session, borrowed.
        durations: Its steps, borrowed.
        blocked: How long callers were blocked in each of them, borrowed.
        report: Receives a sentence when the others are lost.

    Attributes:
        alerts: Of rank 0, which stand in its state; None where nobody asked for alerts.
    """

    def __init__(self, session: Session, durations: Durations, blocked: Blocked, report: Callable[[str], None]) -> None:
        self._session = session
        self._durations = durations
        self._blocked = blocked
        self._exposed = Exposed()
        # Rank 0 looks as often as the others tell, but not at the same time.
        self._told = deque([0], maxlen=_TOLD)
        self._every = 1 + (session.size - 1) // MOST_MESSAGES
        self._turn = session.rank  # spreads the ranks' messages over time
        self._latest: Sample | None = None
        self._first = threading.Event()
        self._report = report
        self._others_are_there = True
        self.alerts: Alerts | None = None

    def append(self, sample: Sample) -> None:
        """Take a sample and publish this rank's state if it is its turn.

        Raises:
            RingtuneError: The store is gone.
        """
        self._latest = sample
        self._first.set()
        self._turn += 1
        session = self._session
        if self._turn % self._every:
            return
        if session.rank == 0:
            self._count_exposed()
            return
        state = observe(session, self._durations, sample, self._blocked.since(self._told[0]))
        self._told.append(state.blocked[-1][0] + 1 if state.blocked else self._told[-1])
        try:
            session.store.set(_key(session, session.rank), state.to_bytes())
        except RuntimeError as error:
            raise RingtuneError(f"metrics of this rank no longer reach rank 0: {error}") from None

    def _count_exposed(self) -> None:
        states = self.all_ranks()
        if len(states) == self._session.size:
            self._exposed.add([state.blocked for state in states])

    def close(self) -> None:
        """Nothing is held."""

    def all_ranks(self) -> list[RankState]:
        """Return this rank's state and the last of the others; unreachable ranks are missing. Any thread."""
        session = self._session
        self._first.wait(1)
        if self._latest is None:
            return []
        own = observe(session, self._durations, self._latest, self._blocked.since(self._exposed.next_step))
        own = replace(own, exposed_ns=self._exposed.total_ns)
        states = [own if self.alerts is None else replace(own, alerts=self.alerts.counts, awaited=self.alerts.awaited)]
        if session.size > 1 and self._others_are_there:
            keys = [_key(session, rank) for rank in range(1, session.size)]
            try:
                found = session.store.get_all(keys, _FETCH_TIMEOUT_NS)
                states += [RankState.from_bytes(document) for document in found if document is not None]
            except (RuntimeError, RingtuneError) as error:
                self._others_are_there = False
                self._report(f"metrics show this rank alone from now on: {error}")
        return states
