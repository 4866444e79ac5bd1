"""Recording this rank's part of the timeline: which steps, in what detail, into which files.

A recording is one file or, where it is cut by size, several: ``rank-00003.spans``, ``rank-00003.1.spans`` ... A later
recording of the same session goes on counting, so that none overwrites another.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ringtune import layout, live_timeline, runfolder
from ringtune.config import Config
from ringtune.elastic.tracks import Tracks
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.output_file import make_private

FULL = "full"
_recorded: set[Path] = set()
"""First files of this process's recordings: an elastic job's next session goes on counting as well."""


class Recorder(Protocol):
    """What a recording needs of its session."""

    rank: int
    config: Config
    tracks: Tracks

    @property
    def recording(self) -> bool:
        """Whether a part is being recorded."""

    def ensure_run_folder(self) -> Path:
        """Make the run folder."""

    def start_part(self, path: str, **how: Any) -> None:
        """Record into a file."""

    def stop_part(self) -> None:
        """Record no longer."""


@dataclass
class Recording:
    """The timeline of one session.

    Attributes:
        file: Where rank 0 merges all parts when the session closes.
    """

    session: Recorder
    file: Path | None = None
    _cleared: bool = False
    _failed: bool = False
    _link: Path | None = None
    _first_file: int = 0

    def begin(self) -> None:
        """Start what the settings ask for."""
        config = self.session.config
        if config.timeline is None or config.timeline_dynamic:
            return
        self.file = config.timeline.absolute()
        if config.timeline_steps:
            self._look(self.session.tracks.first_step)
            return
        try:
            self.start(config.timeline, mark_cycles=config.timeline_mark_cycles)
        except RingtuneError as error:
            if "TIMELINE" not in config.horovods:
                raise
            self._warn(f"nothing is recorded: {error}")  # Horovod trains on, too

    def start(self, path: str | Path | None, *, mark_cycles: bool) -> None:
        """Record from now on.

        Raises:
            TraceIoError: The part cannot be written.
        """
        session, config = self.session, self.session.config
        run = session.ensure_run_folder()
        part = layout.timeline_part(run, session.tracks.own)
        make_private(part.parent)
        if not self._cleared:
            self._clear(part)
        self.file = Path(path).absolute() if path is not None else layout.timeline_file(run)
        target = live_timeline.target(run, self.file) if session.rank == 0 and path is not None else None
        if config.timeline_gzip:
            target = None
        session.start_part(
            str(part),
            mark_cycles=mark_cycles,
            pieces=config.timeline_detail == FULL,
            gzip=config.timeline_gzip,
            rotate_bytes=config.timeline_rotate_bytes,
            first_file=self._first_file,
            shown="" if target is None else str(live_timeline.fresh(run)),
        )
        if session.rank == 0 and path is not None:
            runfolder.update(run, labels={"timeline": str(self.file)})
        if target is not None:
            self._link = live_timeline.show(run, target)

    def stop(self) -> None:
        """Stop; the part is complete then. Spans lost to a full disk give a warning and no error."""
        if not self.session.recording:
            return
        try:
            self.session.stop_part()
        except TraceIoError as error:
            self._warn(f"the timeline has gaps: {error}")

    def close(self) -> None:
        """Stop for good; the merge follows."""
        self.stop()
        if self._link is not None:
            live_timeline.hide(self._link)

    def step_ended(self, step: int) -> None:
        """Begin or end a recording that was asked for by steps."""
        if self.session.config.timeline_steps:
            self._look(step + 1)

    def _look(self, step: int) -> None:
        config = self.session.config
        wanted = any(first <= step < end for first, end in config.timeline_steps)
        if not wanted:
            self._failed = False
        if wanted and not self.session.recording and not self._failed and config.timeline is not None:
            try:
                self.start(config.timeline, mark_cycles=config.timeline_mark_cycles)
            except (RingtuneError, OSError) as error:  # an error of the disk must not end training
                self._failed = True  # said once in a window of steps
                self._warn(f"steps from {step} on are not recorded: {error}")
                self._remove_empty()
        elif not wanted and any(step == end for _, end in config.timeline_steps):
            self.stop()

    def _remove_empty(self) -> None:
        """Remove a part that was begun and holds nothing, which readers would take for a broken one."""
        run = self.session.ensure_run_folder()
        for part in layout.timeline_parts(run).glob(f"{self._stem}.*"):
            with suppress(OSError):
                if part.stat().st_size == 0:
                    part.unlink()

    def _clear(self, part: Path) -> None:
        """Remove what an earlier job left under this rank's name; what this process recorded in one stays."""
        self._cleared = True
        if self.session.tracks.elastic and part in _recorded:
            self._first_file = 1 + max(map(live_timeline.number_of, part.parent.glob(f"{self._stem}.*")), default=-1)
            return
        _recorded.add(part)
        for old in part.parent.glob(f"{self._stem}.*"):
            with suppress(OSError):
                old.unlink()

    @property
    def _stem(self) -> str:
        return layout.rank_stem(self.session.tracks.own)

    def _warn(self, sentence: str) -> None:
        print(f"ringtune warning: [rank {self.session.rank}] {sentence}", file=sys.stderr, flush=True)
