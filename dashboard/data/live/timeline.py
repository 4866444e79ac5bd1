"""The timeline of a job that is still recording: new events of its ranks are added to an index, and none is read twice.

Spans of a part are placed on the job's time by the samples of its host's clock that were known when they arrived. Where
later samples place them elsewhere by more than their error (`moved`), everything is read again; so it is when a file is
replaced by another one.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ringtune.dashboard.data.files import Signature, Unreadable, open_inside, signature
from ringtune.dashboard.data.live.lanes import GrowingLanes
from ringtune.dashboard.data.live.part import Part, aligned, bare, fresh_instants, moved
from ringtune.dashboard.data.live.recent import Recent, joined
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import KEPT_INSTANTS, About, TimelineIndex
from ringtune.dashboard.data.timeline.path import PathTable
from ringtune.dashboard.units import plain
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.merging.clocks import HostOffset, placements
from ringtune.timeline.merging.parts import in_order, one_part_a_rank
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.part_reader import SUFFIXES, PartReader
from ringtune.timeline.spans import Instant, PartInfo, SpanTable, Trace

_SAME_LOOK_S = 0.05
"""A page sends two requests, whether there is something new and what; within this time they count as one."""
MOST_WAITING = 50_000
"""Spans that wait unsorted until lanes are requested."""
COST_FACTOR = 100
"""The critical path of a growing timeline is recomputed after this many times its own duration."""


_GENERATIONS = itertools.count()


class NotFollowed(RingtuneError):
    """These files cannot be followed: they are merged files, or another tool's."""


class LiveTimeline:
    """Follows the parts of one run. Safe to use from several threads.

    Args:
        run: Folder of the run.

    Attributes:
        generation: Another number whenever spans that were there before stand elsewhere.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._path: PathTable | None = None
        self._path_until = 0.0
        self._looked: tuple[float, list[Path], Signature] = (-math.inf, [], ())
        self._restart()

    def _restart(self) -> None:
        self._spans = SpanBuilder()
        self._lanes = GrowingLanes()
        self._parts: dict[Path, Part] = {}
        self._instants: list[Instant] = []
        self._origin: int | None = None
        self._recent = Recent()
        self._waiting: list[SpanTable] = []
        self._index: TimelineIndex | None = None
        self._known_parts: tuple[PartInfo, ...] | None = None
        self._state: Signature = ()
        self.generation = next(_GENERATIONS)
        self._placed_by: tuple[tuple[Path, bool, int], ...] = ()

    @property
    def state(self) -> Signature:
        """A value that changes when there is something new to show."""
        return self._look(0)[1]

    def _look(self, known_s: float) -> tuple[list[Path], Signature]:
        """The files of the timeline and their state, at most this old."""
        at, files, state = self._looked
        if time.monotonic() >= at + known_s:
            files = trace.sources(self._run)
            state = signature(files)
            self._looked = (time.monotonic(), files, state)
        return files, state

    @contextmanager
    def held(self) -> Iterator[TimelineIndex]:
        """Lend the current index, which does not change until it is given back.

        Raises:
            Unreadable: A file cannot be read.
            NotFollowed: See there.
        """
        begin = time.monotonic()
        with self._lock:
            index = self._now()
            yield index
            if index.known_path is not self._path:
                self._path, self._path_until = (
                    index.known_path,
                    time.monotonic() + COST_FACTOR * (time.monotonic() - begin),
                )

    def came(self, generation: int, after: int, most: int) -> tuple[Trace | None, int] | None:
        """Return the steps behind one, of all ranks, and which is the last; lanes need not grow for that.

        Args:
            generation: Of the timeline when that step was seen.
            after: The step.
            most: So many steps at most.

        Returns:
            None where the caller has to use `held`.

        Raises:
            Unreadable: See `held`.
            NotFollowed: See `held`.
        """
        with self._lock:
            self._catch_up()
            last = self._recent.last_step
            if generation != self.generation or self._known_parts is None or last - after > most:
                return None
            if last <= after:
                return None, after
            spans = self._recent.between(after, last)
            if spans is None:
                return None
            return Trace(spans, tuple(self._instants), self._known_parts, "merged", "job"), last

    def _now(self) -> TimelineIndex:
        """Return the index, brought up to date."""
        self._catch_up()
        if self._index is None:
            self._index = self._made()
        return self._index

    def _catch_up(self) -> None:
        """Read what is new, where there is anything."""
        files, state = self._look(_SAME_LOOK_S)
        if state != self._state or (self._index is None and self._known_parts is None):
            self._read(files)
            self._index, self._state = None, state

    def _read(self, files: list[Path]) -> None:
        """Take over what is new."""
        try:
            sure = self._take(files)
        except TraceIoError:  # a file was replaced
            sure = False
        except RingtuneError:
            self._restart()
            raise
        if not sure:
            self._restart()
            try:
                sure = self._take(files)
            except TraceIoError as error:
                self._restart()
                raise Unreadable(plain(str(error).replace(f"{self._run}/", ""), 300)) from error
            if not sure:
                raise Unreadable("The parts of the timeline change faster than they can be read; try again")

    def _take(self, files: list[Path]) -> bool:
        """Read what is new; False when what was read before is to be read again."""
        if not all(path.name.endswith(SUFFIXES) for path in files):
            raise NotFollowed("Only what ranks are writing can be followed")
        if set(self._parts) - set(files):
            return False
        return self._place([(path, self._follow(path)) for path in files])

    def _follow(self, path: Path) -> SpanTable:
        part = self._parts.get(path)
        if part is None:
            part = self._parts[path] = Part(PartReader(path, self._spans, lambda file: open_inside(self._run, file)))
        try:
            part.reader.read()
        except OSError as error:
            raise Unreadable(f"{plain(path.name)} cannot be read: {plain(error.strerror or 'unknown')}") from error
        part.info = part.reader.part()
        return part.reader.take()

    def _place(self, read: list[tuple[Path, SpanTable]]) -> bool:
        """Put spans and instants onto the job's time and into the index; False when old ones stand wrong now.

        Args:
            read: Of some files what was read.
        """
        known = tuple((path, part.info is not None, part.reader.instant_count) for path, part in self._parts.items())
        if known != self._placed_by:  # clocks may be known better now
            for path, offset in self._offsets().items():
                part = self._parts[path]
                if part.placed is not None and moved(part.placed, offset, part.span):
                    return False
                part.placed = offset
            self._placed_by = known
        placed = [(self._parts[path], spans) for path, spans in read if self._parts[path].placed]
        instants = [one for part, _ in placed for one in fresh_instants(part)]
        tables = [aligned(part, spans) for part, spans in placed]
        moments = [int(table.begin_ns.min()) for table in tables if len(table)] + [one.at_ns for one in instants]
        if self._origin is None:
            self._origin = min(moments, default=None)
        if self._origin is not None and min(moments, default=self._origin) < self._origin:
            self._begin_at(min(moments))
        self._add(tables, instants)
        return True

    def _begin_at(self, origin: int) -> None:
        """Let the job's time begin earlier: at a long span, which is written when it ends."""
        later = (self._origin or 0) - origin
        self._settle()
        self.generation, self._recent = next(_GENERATIONS), Recent()
        self._lanes.shift(later)
        self._instants = [replace(one, at_ns=one.at_ns + later) for one in self._instants]
        self._origin, self._path = origin, None

    def _add(self, tables: list[SpanTable], instants: list[Instant]) -> None:
        origin = self._origin or 0
        for table in (one.shifted(-origin) for one in tables):
            self._recent.add(table)
            self._waiting.append(table)
        if sum(map(len, self._waiting)) > MOST_WAITING:
            self._settle()
        kept = (one for one in instants if one.name in KEPT_INSTANTS)
        self._instants += [replace(one, at_ns=one.at_ns - origin) for one in kept]
        self._instants.sort(key=lambda one: (one.at_ns, one.rank))

    def _settle(self) -> None:
        """Put spans that wait for it into their lanes."""
        if self._waiting:
            self._lanes.add(joined(self._waiting))
            self._waiting = []

    def _offsets(self) -> dict[Path, HostOffset]:
        """Return how each file is placed, by all that is known now."""
        known = [part for part in self._parts.values() if part.info is not None]
        try:
            ordered = in_order([bare(part) for part in known])
        except RingtuneError as error:
            raise Unreadable(f"The parts of the timeline cannot be joined: {plain(error, 300)}") from error
        found = zip(ordered, placements(ordered), strict=True)
        return {one.parts[0].path: offset for one, offset in found if one.parts[0].path is not None}

    def _made(self) -> TimelineIndex:
        known = in_order([bare(part) for part in self._parts.values() if part.info is not None])
        parts = one_part_a_rank([
            replace(one, parts=(replace(one.parts[0], error_ns=self._error_ns(one.parts[0].path)),)) for one in known
        ])  # fmt: skip
        self._known_parts = tuple(parts)
        self._settle()
        texts = self._spans.take()
        ranks = tuple(sorted({part.rank for part in parts} | {one.rank for one in self._instants}))
        remarks = trace.remarks(parts)
        about = About(
            names=texts.names,
            tensors=texts.tensors,
            instants=tuple(self._instants),
            ranks=ranks,
            problems=tuple(remarks),
            facts=texts.fact_texts,
            parts=parts,
        )
        path = self._path if time.monotonic() < self._path_until else None
        return TimelineIndex.of(self._lanes, about, path)

    def _error_ns(self, path: Path | None) -> int | None:
        placed = self._parts[path].placed if path is not None else None
        return None if placed is None else placed.error_ns
