"""Under which numbers the processes of a job stand in its timeline and its run folder.

In a job with fixed ranks the numbers are the ranks. In an elastic job they are those of the workers: a process keeps
its number over all generations, whatever its rank becomes, and one that joins later has a number of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringtune import runfolder
from ringtune.bootstrap.placement import Placement
from ringtune.elastic import membership

_EARLIER = 8
"""Ranks may fail to meet, and meet again, so often in a row."""


class Tracks:
    """The numbers of one session's ranks, and of those before it.

    Args:
        placement: Of this process.
        hosts: Host of every rank.

    Attributes:
        own: This process's number.
        first_step: Number of the session's first step.
        of_ranks: The number of each rank.
        hosts: Hosts of all processes that the job has had, by their number.
        earlier_jobs: Keys in the store of an elastic job's last sessions before this one, oldest first.
    """

    def __init__(self, placement: Placement, hosts: Sequence[str]) -> None:
        self._placement = placement
        timeline, last = placement.timeline, placement.generation or 0
        self.own = placement.track
        self.first_step = 0 if timeline is None else timeline.first_step
        self.of_ranks: Sequence[int] = range(len(hosts)) if timeline is None else timeline.ranks
        self.hosts: Mapping[int, str] = dict(enumerate(hosts)) if timeline is None else timeline.hosts
        self.earlier_jobs = [f"{placement.job}.{number}" for number in range(max(1, last - _EARLIER), last)]

    @property
    def elastic(self) -> bool:
        """Whether this is one generation of an elastic job."""
        return self._placement.timeline is not None

    @property
    def going_on(self) -> bool:
        """Whether this process joins its job's next generation when the session has closed."""
        return self.elastic and membership.is_going_on()

    def described(self, run: Path) -> dict[str, Any]:
        """Return what `runfolder.describe` is to say of the processes."""
        hosts = [self.hosts.get(number, "") for number in range(max(self.hosts) + 1)]
        timeline = self._placement.timeline
        if timeline is None:
            return {"hosts": hosts}
        this = {
            "generation": self._placement.generation,
            "began_unix_ns": time.time_ns(),
            "ranks": timeline.ranks,
            "first_step": timeline.first_step,
        }
        return {"hosts": hosts, "generations": [*(runfolder.read(run) or {}).get("generations", ()), this]}
