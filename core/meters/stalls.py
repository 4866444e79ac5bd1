"""The stall that a rank reported last: which operations wait, since when, and for which ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from ringtune import layout
from ringtune.meters.sample import Sample
from ringtune.output_file import write_output

if TYPE_CHECKING:
    from ringtune.session import Session


@dataclass(frozen=True)
class Waiting:
    """An operation that waits for ranks.

    Attributes:
        operation: For people, for example ``'grad.3' (allreduce)``.
        tensor: Its name.
        since_unix_ns: When it was submitted.
        missing: The ranks that have not submitted it; none where all have come to it, and their bytes have not.
    """

    operation: str
    tensor: str
    since_unix_ns: int
    missing: Sequence[int]


@dataclass(frozen=True)
class Stall:
    """A report: when the stall was seen, by the monotonic clock of its rank (0: there is none), and what waits."""

    seen_ns: int = 0
    waiting: Sequence[Waiting] = field(default_factory=list)

    @staticmethod
    def reported(session: Session) -> Stall:
        """Return the newest report of a session's rank. Any thread."""
        seen_ns, operations = session.reported_stall
        seen_unix_ns = time.time_ns() - (time.monotonic_ns() - seen_ns)
        return Stall(
            seen_ns, [Waiting(title, name, seen_unix_ns - age, ranks) for title, name, age, ranks in operations]
        )


class StallLog:
    """Writes ``stacks/rank-NNNNN.json`` of a run while a stall that this rank reported is not over.

    What a failed job leaves says whom it waited for.

    Args:
        run: The run's folder.
        rank: The rank.
        stall: Returns its newest report.
        progress: Returns what changes whenever this rank gets on.
        tracks: The number of each rank in the run folder.
    """

    def __init__(
        self, run: Path, rank: int, stall: Callable[[], Stall], progress: Callable[[], object], tracks: Sequence[int]
    ) -> None:
        self.path = layout.stall_file(run, rank)
        self._stall, self._progress, self._tracks = stall, progress, tracks
        self._known_ns = 0
        self._seen: object = None
        self._written = False
        with suppress(OSError):
            self.path.unlink(missing_ok=True)  # of the rank that this one replaces

    def append(self, _sample: Sample) -> None:
        """Write what was reported since the last look; once the rank gets on, what was written is removed.

        Raises:
            RingtuneError: It cannot be written, for example because the disk is full.
        """
        found, seen = self._stall(), self._progress()
        if found.seen_ns != self._known_ns:
            self._known_ns, self._seen, self._written = found.seen_ns, seen, True
            waiting = [replace(one, missing=[self._tracks[rank] for rank in one.missing]) for one in found.waiting]
            document = {"format": layout.FORMAT, "written_unix_ns": time.time_ns(), "waiting": waiting}
            write_output(self.path, orjson.dumps(document))
        elif self._written and seen != self._seen:
            self._written = False
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing: the sampler may end before the rank does."""
