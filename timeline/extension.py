"""The timeline inside a training process: at the end rank 0 merges all parts into the file the user named.

Registered as session extension (entry-point group ``ringtune.session``) and, for jobs whose rank 0 died, with the
launcher (``ringtune.after_run``). Nothing here may break or hang a job: waits are bounded, a failure is one line on
stderr, and the parts stay where they are for ``ringtune timeline merge``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.output_file import is_stream
from ringtune.timeline.merging.merge import merge, merge_run
from ringtune.timeline.merging.parts import files_of_rank, part_files
from ringtune.timeline.merging.report import MergeReport
from ringtune.timeline.runs.run import Run
from ringtune.timeline.runs.upload import Collection, Limits, Store, pace_of, report_state, upload

_LATE_NS = 10_000_000_000
_sent: set[tuple[str, Path]] = set()
"""Which files this process has sent to which host: an elastic job sends the new ones at the end of each generation."""


class TracksLike(Protocol):
    """What is needed of a `ringtune.elastic.tracks.Tracks`."""

    own: int
    of_ranks: Sequence[int]
    hosts: Mapping[int, str]
    earlier_jobs: Sequence[str]

    @property
    def elastic(self) -> bool:
        """Whether this is one generation of an elastic job."""

    @property
    def going_on(self) -> bool:
        """Whether this process joins its job's next generation when the session has closed."""


class SessionLike(Protocol):
    """What is needed of a `ringtune.session.Session`."""

    rank: int
    job: str
    run_folder: Path | None
    timeline_file: Path | None

    @property
    def tracks(self) -> TracksLike:
        """Who stands under which number in the timeline."""

    @property
    def store(self) -> Store | None:
        """Client of the job's store; None for a job of one."""


class TimelineExtension:
    """Brings the parts together when the session has closed."""

    def __init__(self, session: SessionLike, limits: Limits | None = None) -> None:
        self._session = session
        self._limits = limits or Limits()

    def on_step(self, stats: Any) -> None:
        """Nothing to do."""

    def on_close(self) -> None:
        """Nothing to do: the parts are not complete yet."""

    def open(self) -> None:
        """Take the parts that ranks of an elastic job have sent when their last generation ended (rank 0)."""
        session, tracks = self._session, self._session.tracks
        if session.rank or session.store is None or session.run_folder is None:
            return
        # The ranks have met since: what a rank has not begun to send by now does not come.
        limits = replace(self._limits, report_ns=0, upload_ns=_LATE_NS)
        for job in tracks.earlier_jobs:
            for sentence in self._fetch(Collection(session.store, job, limits), tracks.hosts)[1]:
                _warn(sentence)

    def after_close(self) -> None:
        """Merge (rank 0, when the job does not go on) or hand over this rank's part (all others)."""
        try:
            if self._session.rank:
                self._hand_over()
            elif not self._session.tracks.going_on:
                self._merge()
        except (RingtuneError, OSError) as error:
            _warn(f"[rank {self._session.rank}] the timeline was not merged: {error}")

    def _files(self) -> list[Path]:
        """The files of this rank's part, if it recorded one."""
        folder = self._session.run_folder
        return [] if folder is None else files_of_rank(folder, self._session.tracks.own)

    def _hand_over(self) -> None:
        session, tracks, files = self._session, self._session.tracks, self._files()
        if session.store is None:
            return
        own, host = tracks.hosts[tracks.own], tracks.hosts[tracks.of_ranks[0]]
        state = "none" if not files else "upload" if own != host else "file"
        files = [file for file in files if (host, file) not in _sent]
        try:
            report_state(session.store, session.job, tracks.own, state)
            if state == "upload":
                # Rank 0 of an elastic job takes the parts when it has joined the next generation.
                pace = None if tracks.elastic else pace_of(len(tracks.of_ranks), self._limits)
                upload(session.store, session.job, tracks.own, files, pace)
                _sent.update((host, file) for file in files)
        except Exception as error:  # the store's own classes are not known in this room
            if state == "upload":
                _warn(
                    f"[rank {session.rank}] its part of the timeline could not be sent to rank 0: {error}; "
                    f"it lies in {files[0] if files else session.run_folder} on {own}"
                )

    def _merge(self) -> None:
        session, files = self._session, self._files()
        if session.run_folder is None or not (files or session.tracks.earlier_jobs):
            return
        problems: list[str] = []
        if session.store is not None:
            files += self._gather(session.store, session.run_folder, problems)
        if not files:
            return
        output = session.timeline_file or layout.timeline_file(session.run_folder)
        report = merge(files, output)
        layout.shown_file(session.run_folder).unlink(missing_ok=True)
        for sentence in [*problems, *report.sentences()]:
            _warn(sentence)
        _say(report)

    def _gather(self, store: Store, folder: Path, problems: list[str]) -> list[Path]:
        """Parts of the other ranks: those on this host's disk, and those that were sent."""
        tracks = self._session.tracks
        states, lost = self._fetch(Collection(store, self._session.job, self._limits), tracks.of_ranks[1:])
        problems += lost
        # A rank without a report may have died while it recorded; its files are on the disk all the same.
        present = [number for number in tracks.hosts if number != tracks.own and states.get(number) != "none"]
        return [file for number in present for file in files_of_rank(folder, number)]

    def _fetch(self, collection: Collection, numbers: Iterable[int]) -> tuple[dict[int, str], list[str]]:
        """Take what these ranks have sent into the run folder; what they report, and which parts did not come."""
        states, folder = collection.states(numbers), self._session.run_folder
        far = [number for number, state in states.items() if state == "upload"]
        if folder is not None:
            collection.fetch(far, layout.timeline_parts(folder))
        return states, collection.problems


def open_timeline(session: SessionLike) -> TimelineExtension:
    """Session extension (entry-point group ``ringtune.session``); recording may also start later, so always there."""
    extension = TimelineExtension(session)
    extension.open()
    return extension


def merge_after_run(folder: Path) -> None:
    """Merge what the ranks left when rank 0 could not (entry-point group ``ringtune.after_run``).

    Raises:
        RingtuneError: There are parts but they cannot be merged.
    """
    run, parts = Run(folder), part_files(folder)
    merged = run.timeline
    if not parts:
        return
    if merged is not None:
        with suppress(OSError):
            if merged.stat().st_mtime_ns >= max(part.stat().st_mtime_ns for part in parts):
                return
    named = run.labels.get("timeline")
    if isinstance(named, str) and is_stream(Path(named)):
        return  # it does not show whether rank 0 has written to it, and a pipe takes a trace once
    report = merge_run(folder, named if isinstance(named, str) and named else None)
    layout.shown_file(folder).unlink(missing_ok=True)
    for sentence in report.sentences():
        _warn(sentence)
    _say(report)


def _say(report: MergeReport) -> None:
    ranks = len(report.parts)
    who = f"{ranks} {'rank' if ranks == 1 else 'ranks'}"
    print(f"ringtune: timeline of {who}, {report.spans} spans: {report.output}", file=sys.stderr, flush=True)


def _warn(sentence: str) -> None:
    print(f"ringtune warning: {sentence}", file=sys.stderr, flush=True)
