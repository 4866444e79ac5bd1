"""Horovod's exceptions, where scripts look for them (``horovod.common.exceptions``)."""

from __future__ import annotations

from ringtune.errors import HorovodInternalError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed; training should stop at its next commit.

    Args:
        skip_sync: Whether the state needs no synchronisation afterwards.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync
