"""The timeline of a job that is still recording: new events of its ranks are added to an index, and none is read twice.

The newest events are read whenever a page asks. Where there are more than may be read at once, reading continues near
the ends of the parts, and what lies between is read beside the job (`backlog`); the index shows where it is missing.

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
from ringtune.dashboard.data.live.backlog import PIECE_BYTES, BacklogReader, Reading
from ringtune.dashboard.data.live.lanes import GrowingLanes
from ringtune.dashboard.data.live.part import Part, aligned, bare, fresh_instants, moved
from ringtune.dashboard.data.live.recent import Recent, joined
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import KEPT_INSTANTS, About, TimelineIndex
from ringtune.dashboard.data.timeline.path import PathTable
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.units import plain
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.merging.clocks import HostOffset, placements
from ringtune.timeline.merging.parts import in_order, one_part_a_rank
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.following import PartFollower
from ringtune.timeline.reading.following_packed import PackedFollower
from ringtune.timeline.spans import Instant, PartInfo, SpanTable, Trace

AT_ONCE_BYTES = 24 << 20
"""The most that is read at once at the first request, or at the first one after `AWAY_S`."""
NEWEST_BYTES = 192 << 10
"""The most that is read at once otherwise: a job that writes more between two polls must not make them expensive."""
LEAST_BYTES = 8 << 10
"""The least that is read of each part within that limit."""
AWAY_S = 5.0
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
        # Threads that wait for the lock hold this one, so that the backlog's reader lets drawing pass.
        self._next = threading.Lock()
        self._backlog = BacklogReader(self._piece_of_past)
        self._path: PathTable | None = None
        self._path_until = 0.0
        self._looked: tuple[float, list[Path], Signature] = (-math.inf, [], ())
        self._read_at = -math.inf
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

    @property
    def reading(self) -> Reading | None:
        """The progress of reading the backlog; None where nothing is missing."""
        parts = [part.follower for part in dict(self._parts).values()]
        missing = sum(hole.length for one in parts for hole in one.holes)
        if not missing:
            return None
        return Reading(1 - missing / max(1, sum(one.offset for one in parts)), self._backlog.hurrying)

    def hurry(self) -> None:
        """Read the backlog unthrottled."""
        self._backlog.hurry()

    @contextmanager
    def held(self) -> Iterator[TimelineIndex]:
        """Lend the current index, which does not change until it is given back.

        Raises:
            Unreadable: A file cannot be read.
            NotFollowed: See there.
        """
        begin = time.monotonic()
        with self._my_turn():
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
        with self._my_turn():
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

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        with self._next:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

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
            sizes = {path: entry[2] for path, entry in zip(files, state, strict=True)}
            first = time.monotonic() >= self._read_at + AWAY_S
            self._read(sizes, AT_ONCE_BYTES if first else NEWEST_BYTES)
            self._index, self._state = None, state
        self._read_at = time.monotonic()
        if any(part.follower.holes for part in self._parts.values()):
            self._backlog.looked_at()

    def _piece_of_past(self) -> bool:
        """Read some of what was left out; whether there is more of it."""
        with self._my_turn():
            left = {path: sum(hole.length for hole in part.follower.holes) for path, part in self._parts.items()}
            if not any(left.values()):
                return False
            part = self._parts[max(left, key=left.__getitem__)]
            try:
                found = part.follower.fill(AT_ONCE_BYTES if self._backlog.hurrying else PIECE_BYTES)
                if found is not None:
                    part.filled(found)
                    if not self._place([(part.follower.path, found)], past=True):
                        self._restart()
                    self._settle()  # on this thread, to keep polls of pages short
                self._index = None
            except (RingtuneError, OSError):  # the next request meets the same error and reports it
                self._restart()
            return True

    def _read(self, sizes: dict[Path, int], limit_bytes: int) -> None:
        """Take over what is new, at most about so many bytes."""
        try:
            sure = self._take(sizes, limit_bytes)
        except TraceIoError:  # a file was replaced
            sure = False
        except RingtuneError:
            self._restart()
            raise
        if not sure:
            self._restart()
            try:
                sure = self._take(sizes, AT_ONCE_BYTES)
            except TraceIoError as error:
                self._restart()
                raise Unreadable(plain(str(error).replace(f"{self._run}/", ""), 300)) from error
            if not sure:
                raise Unreadable("The parts of the timeline change faster than they can be read; try again")

    def _take(self, sizes: dict[Path, int], limit_bytes: int) -> bool:
        """Read what is new; False when what was read before is to be read again."""
        files = list(sizes)
        if trace.is_merged(self._run, files):
            raise NotFollowed("Only what ranks are writing can be followed")
        if set(self._parts) - set(files):
            return False
        followers = {path: self._part(path).follower for path in sizes}
        unread = {path: (sizes[path] - one.offset) * one.bytes_of_packed for path, one in followers.items()}
        going_on = [path for path, left in unread.items() if left]
        if sum(unread.values()) > limit_bytes and not self._leave_out(going_on):
            return False
        while going_on:
            read = [(path, found) for path in going_on if (found := self._follow(path)) is not None]
            if not self._place(read):
                return False
            going_on = [path for path, _ in read if not self._parts[path].follower.ended]
        return True

    def _leave_out(self, files: list[Path]) -> bool:
        """Go on near the ends of files; returns whether earlier spans are still placed right."""
        keep, heads = max(LEAST_BYTES, NEWEST_BYTES // len(files)), list[tuple[Path, SpanTable]]()
        for path in files:
            part = self._parts[path]
            # The header of a part stands at its begin.
            head = None if part.follower.offset else self._follow(path, keep)
            heads += [(path, head)] if head is not None else []
            with _readable(path):
                part.leave_out(keep)
        return self._place(heads, past=True)  # only now, when all samples of clocks are known

    def _part(self, path: Path) -> Part:
        part = self._parts.get(path)
        if part is None:
            kind = PackedFollower if path.suffix == ".gz" else PartFollower
            part = self._parts[path] = Part(kind(path, self._spans, lambda file: open_inside(self._run, file)))
        return part

    def _follow(self, path: Path, limit_bytes: int | None = None) -> SpanTable | None:
        part = self._parts[path]
        with _readable(path):
            found = part.follower.follow(limit_bytes)
        if found is not None:
            part.came(found)
            part.info = part.follower.part()
            if part.info is None and len(found):
                raise NotFollowed(f"{plain(path.name)} is not a part that ringtune recorded")
        return found

    def _place(self, read: list[tuple[Path, SpanTable]], *, past: bool = False) -> bool:
        """Put spans and instants onto the job's time and into the index; False when old ones stand wrong now.

        Args:
            read: Of some files what was read.
            past: There may be spans behind these that were read before.
        """
        known = tuple((path, part.info is not None, part.follower.instant_count) for path, part in self._parts.items())
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
        self._add(tables, instants, past=past)
        return True

    def _begin_at(self, origin: int) -> None:
        """Let the job's time begin earlier: at a long span, which is written when it ends."""
        later = (self._origin or 0) - origin
        self._settle()
        self.generation, self._recent = next(_GENERATIONS), Recent()
        self._lanes.shift(later)
        self._instants = [replace(one, at_ns=one.at_ns + later) for one in self._instants]
        self._origin, self._path = origin, None

    def _add(self, tables: list[SpanTable], instants: list[Instant], *, past: bool) -> None:
        origin = self._origin or 0
        for table in (one.shifted(-origin) for one in tables):
            self._recent.add(table, past=past)
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
            missing=self._missing(),
            parts=parts,
        )
        path = self._path if time.monotonic() < self._path_until else None
        return TimelineIndex.of(self._lanes, about, path)

    def _missing(self) -> tuple[Window, ...]:
        """When spans of some rank are missing, as windows that do not touch."""
        found, origin = list[Window](), self._origin or 0
        for begin, end in sorted(gap for part in self._parts.values() for gap in part.missing()):
            if found and begin - origin <= found[-1].end_ns:
                found[-1] = Window(found[-1].begin_ns, max(found[-1].end_ns, end - origin))
            else:
                found.append(Window(begin - origin, end - origin))
        return tuple(found)

    def _error_ns(self, path: Path | None) -> int | None:
        placed = self._parts[path].placed if path is not None else None
        return None if placed is None else placed.error_ns


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the system's error about a file into a sentence for the page."""
    try:
        yield
    except OSError as error:
        raise Unreadable(f"{plain(path.name)} cannot be read: {plain(error.strerror or 'unknown')}") from error
