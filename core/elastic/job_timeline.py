"""How the generations of an elastic job share one timeline: under which numbers, and by which clock, each one records.

A process has the number of its worker there, whatever its rank becomes; steps and batches are counted on. Times are
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_STEPS_APART = 2
_BATCHES_APART = 1024
"""A worker that was lost may have been so far ahead of all that know how far they were."""
_UNKNOWN = (0, -1)


@dataclass(frozen=True)
class JobTimeline:
    """The place of one generation in the timeline of its job.

    Attributes:
        ranks: The number in the timeline of each rank.
        first_step: Number of its first step.
        first_batch: Is added to the numbers of its batches.
        clock: The timeline's clock minus rank 0's, and the error of that; -1 = not known.
        hosts: Host of all that had a rank so far, by their numbers in the timeline.
    """

    ranks: tuple[int, ...]
    first_step: int = 0
    first_batch: int = 0
    clock: tuple[int, int] = (0, 0)
    hosts: Mapping[int, str] = field(default_factory=dict)

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> JobTimeline:
        """Return what `as_dict` has written."""
        offset, error = given["clock"]
        hosts = {int(worker): host for worker, host in given["hosts"]}
        return JobTimeline(tuple(given["ranks"]), given["first_step"], given["first_batch"], (offset, error), hosts)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, whose objects have no numbers as keys."""
        return {**asdict(self), "hosts": list(self.hosts.items())}


class Continuation:
    """The launcher's memory of how far the job's ranks have come: where the next generation goes on."""

    def __init__(self) -> None:
        self._step = self._batch = -1
        self._clocks: dict[int, tuple[int, int]] = {}
        self._hosts: dict[int, str] = {}
        self._reference: str | None = None

    def came(self, worker: int, progress: Sequence[int]) -> None:
        """Note how far a worker is that waits for its next rank.

        Args:
            worker: Its number.
            progress: Step and last batch, the timeline's clock minus its own and the error of that (-1: not known).
        """
        step, batch, offset_ns, error_ns = progress
        self._step, self._batch = max(self._step, step), max(self._batch, batch)
        self._clocks[worker] = (offset_ns, error_ns)

    def begin(self, workers: Sequence[int], hosts: Sequence[str]) -> JobTimeline:
        """Return where a generation goes on.

        Args:
            workers: The worker of each rank.
            hosts: Its host.
        """
        self._hosts.update(zip(workers, hosts, strict=True))
        if self._reference is None:
            self._reference = hosts[0]
        here = hosts[0] == self._reference
        clock = (0, 0) if here else self._clocks.get(workers[0], _UNKNOWN)
        began = self._step >= 0
        return JobTimeline(
            tuple(workers),
            self._step + _STEPS_APART if began else 0,
            self._batch + _BATCHES_APART if began else 0,
            clock,
            dict(self._hosts),
        )
