"""Tells the ranks that meet when one of them has ended: whatever it had published already, it will not come."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ringtune import native
from ringtune.bootstrap.placement import Placement
from ringtune.errors import PeerLost


class MeetingWatch:
    """One rank's watch over a meeting. `begin` and `end` on the thread that meets, `look` on the one that waits for it.

    Args:
        job: Key of the session in the store.
    """

    def __init__(self, job: str) -> None:
        self._keys = f"{job}/"
        self._key = f"{self._keys}ended_early"
        self._met_key = f"{self._keys}ended"
        self._store: Any = None
        self._seen = False

    def begin(self, store: Any, placement: Placement) -> None:
        """From now on the other ranks get a notice when this process ends."""
        store.set_at_end(self._key, f"rank {placement.rank} on {placement.host}".encode())
        self._store = store

    def end(self, store: Any) -> None:
        """The ranks have met: from now on the runtime tells who is lost, and a process may end."""
        self._store = None
        store.set_at_end(self._met_key, b"")

    def look(self) -> None:
        """Look whether a rank has ended; the second time, since the meeting itself may know why.

        Raises:
            PeerLost: One has. It says what was said first of this meeting: the end of one rank makes others end.
        """
        store = self._store
        if store is None:
            return
        try:
            who = store.get(self._key, 0).decode()
        except native.error_class():  # none has; or the store is gone, which the meeting notices
            return
        if self._seen:
            reason = f"{who} ended while the ranks of the job met, and will not come"
            with suppress(native.error_class()):
                reason = store.refuse(reason, self._keys)
            raise PeerLost(reason)
        self._seen = True
