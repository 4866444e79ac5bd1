"""A timeline of rank 0's first steps, for the model's first points.

The runtime records it into the tuner's own folder, beside the job's timeline and without its merge. A part of one rank
is enough: its gradients' sizes and ready times are those of all ranks, and its batches' travel times show the links.
Where the user records a timeline nothing is recorded here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.output_file import make_private


class Recorder(Protocol):
    """What of a session is used."""

    @property
    def recording(self) -> bool: ...

    def start_part(self, path: str) -> None: ...

    def stop_part(self) -> None: ...


class WarmupTrace:
    """Records from `begin` until `end`.

    Args:
        session: The session.
        run: The run folder.
        say: Receives a sentence when the recording fails.
    """

    def __init__(self, session: Recorder, run: Path, say: Callable[[str], None]) -> None:
        self._session, self._say = session, say
        self._part = layout.tuning_journal(run).with_name(f"{layout.rank_stem(0)}.json")
        self._mine = False

    def begin(self) -> None:
        """Start recording, unless a timeline is being recorded already; does without when that fails."""
        if self._session.recording:
            return
        try:
            make_private(self._part.parent)
            self._session.start_part(str(self._part))
        except (OSError, RingtuneError) as error:
            self._without(error)
            return
        self._mine = True

    def end(self) -> str:
        """Stop (some tenths of a millisecond); returns the part, or nothing when none was recorded."""
        if not self._mine:
            return ""
        self._mine = False
        try:
            self._session.stop_part()
        except RingtuneError as error:
            self._without(error)
            return ""
        return str(self._part)

    def _without(self, error: Exception) -> None:
        self._say(f"no timeline of the warm-up, the search begins without a cost model: {error}")
