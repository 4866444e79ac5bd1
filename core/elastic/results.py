"""What may have happened to the hosts of a job."""

from __future__ import annotations

from enum import IntFlag


class HostUpdateResult(IntFlag):
    """What happened to the hosts."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3
