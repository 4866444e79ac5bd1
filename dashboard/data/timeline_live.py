"""The timeline of a job that is still recording: what its ranks write is added to an index, and nothing is read twice.

Spans of a part are placed on the job's time by what was known of its host's clock when they came. Where later samples
of that clock place them elsewhere by more than they are exact (`_moved`), all is read anew; so it is when a file turns
out to be another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ringtune.dashboard.data import trace
from ringtune.dashboard.data.files import Signature, Unreadable, open_inside, signature
from ringtune.dashboard.data.timeline import KEPT_INSTANTS, About, TimelineIndex
from ringtune.dashboard.data.timeline_growing import GrowingLanes
from ringtune.dashboard.data.timeline_path import PathTable
from ringtune.dashboard.data.timeline_prepare import Preparing
from ringtune.dashboard.units import plain
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.clocks import HostOffset, placements
from ringtune.timeline.columns import SpanBuilder
from ringtune.timeline.following import PartFollower
from ringtune.timeline.merge import in_order, one_part_a_rank
from ringtune.timeline.spans import Instant, PartInfo, SpanTable, Trace, empty_table

LAG_S = 3.0
"""What ranks wrote is read after this time at the latest."""
REST = 100
"""Within it, what was written is looked for again after this many times what the last look cost."""
AT_ONCE_BYTES = 32 << 20
"""More than this is read in the background, with a bar that shows how far it is."""
PIECE_BYTES = 8 << 20
"""Of which this much is read before the page may draw what is there already."""
_LEAST_MOVE_NS = 50_000
"""A change of what is known of a clock that nobody sees."""


class NotFollowed(RingtuneError):
    """The files are none that can be followed: packed, or another tool's."""


@dataclass
class _Part:
    """A file that is followed: how its spans were placed, and how many of its instants are taken over."""

    follower: PartFollower
    info: PartInfo | None = None
    placed: HostOffset | None = None
    span: tuple[int, int] | None = None
    """Least begin and largest end of its spans so far, on its own clock."""
    instants: int = 0


class LiveTimeline:
    """Follows the parts of one run. Safe to use from several threads.

    Args:
        run: Folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._next = threading.Lock()  # held by who waits for the lock, so that a long reading lets drawing in between
        self._starting = threading.Lock()
        self._state: Signature = ()
        self._look_at = 0.0
        self._reader: threading.Thread | None = None
        self._failed: RingtuneError | None = None
        self._path: PathTable | None = None
        self._path_until = 0.0
        self._restart()

    def _restart(self) -> None:
        self._spans = SpanBuilder()
        self._lanes = GrowingLanes()
        self._parts: dict[Path, _Part] = {}
        self._instants: list[Instant] = []
        self._origin: int | None = None
        self._index: TimelineIndex | None = None

    @property
    def state(self) -> Signature:
        """What changes when there is something new to show, and it is time to."""
        if time.monotonic() < self._look_at:
            return self._state
        return signature(trace.sources(self._run))

    @property
    def reading(self) -> Preparing | None:
        """How far a reading in the background is; None when there is none."""
        going_on = self._reader is not None and self._reader.is_alive()
        return Preparing(self._share(), "reading the trace") if going_on else None

    def _share(self) -> float:
        """What share of the files is read."""
        parts = dict(self._parts)
        return sum(part.follower.offset for part in parts.values()) / max(1, sum(one[2] for one in signature(parts)))

    @contextmanager
    def held(self) -> Iterator[TimelineIndex | Preparing]:
        """Give the index as it is now, which stays so until it is given back, or how far its first reading is.

        While much is read in the background, the index is of what was read so far; `reading` says how far that is.

        Raises:
            Unreadable: A file cannot be read.
            NotFollowed: See there.
        """
        begin = time.monotonic()
        catching_up = self._catching_up()
        if catching_up and self._index is None:
            yield Preparing(self._share(), "reading the trace")
            return
        with self._my_turn():
            index = self._index if catching_up and self._index is not None else self._now()
            yield index
            if index.known_path is not self._path:
                self._path, self._path_until = index.known_path, time.monotonic() + REST * (time.monotonic() - begin)

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        with self._next:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _catching_up(self) -> bool:
        """Whether much is to be read, in a thread; starts one."""
        with self._starting:
            return self._catches_up()

    def _catches_up(self) -> bool:
        if self._reader is not None:
            if self._reader.is_alive():
                return True
            self._reader.join()
            self._reader = None
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
        if self._left() <= AT_ONCE_BYTES:
            return False
        self._reader = threading.Thread(target=self._catch_up, daemon=True)
        self._reader.start()
        return True

    def _left(self) -> int:
        return sum(
            entry[2] - (self._parts[path].follower.offset if path in self._parts else 0)
            for path, entry in ((path, signature([path])[0]) for path in trace.sources(self._run))
        )

    def _catch_up(self) -> None:
        try:
            while self._left() > AT_ONCE_BYTES:
                with self._my_turn():
                    self._read(PIECE_BYTES)
                    self._index, self._state = self._made(), ()
        except RingtuneError as error:
            self._failed = error

    def _now(self) -> TimelineIndex:
        """Return the index, brought up to date when it is time."""
        if self._index is None or time.monotonic() >= self._look_at:
            begin, state = time.monotonic(), signature(trace.sources(self._run))
            if self._index is None or state != self._state:
                self._read(AT_ONCE_BYTES)
                self._index = self._made()
                self._state = state
            self._look_at = time.monotonic() + min(LAG_S, REST * (time.monotonic() - begin))
        return self._index

    def _read(self, limit_bytes: int) -> None:
        """Take over what is new, up to about so many bytes."""
        try:
            sure = self._take(limit_bytes)
        except TraceIoError:  # a file was replaced
            sure = False
        except RingtuneError:
            self._restart()
            raise
        if not sure:
            self._restart()
            if not self._take(limit_bytes):
                raise Unreadable("The parts of the timeline change faster than they can be read; try again")

    def _take(self, limit_bytes: int) -> bool:
        """Read what is new; False when what was read before is to be read again."""
        files = trace.sources(self._run)
        if any(path.suffix != ".json" for path in files) or trace.is_merged(self._run, files):
            raise NotFollowed("Only parts that are not packed can be followed")
        if set(self._parts) - set(files):
            return False
        before = self._bytes()
        while self._bytes() - before < limit_bytes:
            read = [(path, found) for path in files if (found := self._follow(path)) is not None]
            if not read:
                return True
            if not self._place(read):
                return False
        return True

    def _bytes(self) -> int:
        return sum(part.follower.offset for part in self._parts.values())

    def _follow(self, path: Path) -> SpanTable | None:
        part = self._parts.get(path)
        if part is None:
            follower = PartFollower(path, self._spans, lambda file: open_inside(self._run, file))
            part = self._parts[path] = _Part(follower)
        try:
            found = part.follower.follow()
        except OSError as error:
            raise Unreadable(f"{plain(path.name)} cannot be read: {plain(error.strerror or 'unknown')}") from error
        if found is not None:
            part.info = part.follower.part()
            if part.info is None and len(found):
                raise NotFollowed(f"{plain(path.name)} is no part that ringtune recorded")
        return found

    def _place(self, read: list[tuple[Path, SpanTable]]) -> bool:
        """Put spans and instants onto the job's time and into the index; False when old ones stand wrong now."""
        for path, offset in self._offsets().items():
            part = self._parts[path]
            if part.placed is not None and _moved(part.placed, offset, part.span):
                return False
            part.placed = offset
        placed = [(self._parts[path], spans) for path, spans in read if self._parts[path].placed]
        instants = [one for part, _ in placed for one in _fresh_instants(part)]
        tables = [_aligned(part, spans) for part, spans in placed]
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
        self._lanes.shift(later)
        self._instants = [replace(one, at_ns=one.at_ns + later) for one in self._instants]
        self._origin, self._path = origin, None

    def _add(self, tables: list[SpanTable], instants: list[Instant]) -> None:
        origin = self._origin or 0
        for table in tables:
            self._lanes.add(table.shifted(-origin))
        kept = (one for one in instants if one.name in KEPT_INSTANTS)
        self._instants += [replace(one, at_ns=one.at_ns - origin) for one in kept]
        self._instants.sort(key=lambda one: (one.at_ns, one.rank))

    def _offsets(self) -> dict[Path, HostOffset]:
        """Return how each file is placed, by all that is known now."""
        known = [part for part in self._parts.values() if part.info is not None]
        try:
            ordered = in_order([_bare(part) for part in known])
        except RingtuneError as error:
            raise Unreadable(f"The parts of the timeline do not fit together: {plain(error, 300)}") from error
        found = zip(ordered, placements(ordered), strict=True)
        return {one.parts[0].path: offset for one, offset in found if one.parts[0].path is not None}

    def _made(self) -> TimelineIndex:
        known = in_order([_bare(part) for part in self._parts.values() if part.info is not None])
        parts = one_part_a_rank([
            replace(one, parts=(replace(one.parts[0], error_ns=self._error_ns(one.parts[0].path)),)) for one in known
        ])  # fmt: skip
        texts = self._spans.take()
        ranks = tuple(sorted({part.rank for part in parts} | {one.rank for one in self._instants}))
        remarks = trace.remarks(parts)
        about = About(texts.names, texts.tensors, tuple(self._instants), ranks, tuple(remarks), texts.fact_texts)
        path = self._path if time.monotonic() < self._path_until else None
        return TimelineIndex.of(self._lanes, about, path)

    def _error_ns(self, path: Path | None) -> int | None:
        placed = self._parts[path].placed if path is not None else None
        return None if placed is None else placed.error_ns


def _bare(part: _Part) -> Trace:
    """A part without its spans: all that placing it takes."""
    assert part.info is not None
    return Trace(empty_table(), part.follower.instants, (part.info,), "part")


def _fresh_instants(part: _Part) -> list[Instant]:
    """The instants of a part that were not taken over yet, on rank 0's clock."""
    fresh = part.follower.instants[part.instants :]
    part.instants += len(fresh)
    assert part.placed is not None
    return [replace(one, at_ns=one.at_ns + part.placed.at(one.at_ns)) for one in fresh]


def _aligned(part: _Part, spans: SpanTable) -> SpanTable:
    """Spans of a part on rank 0's clock."""
    assert part.placed is not None
    if not len(spans):
        return spans
    begin, end = int(spans.begin_ns.min()), int(spans.end_ns.max())
    part.span = (min(begin, part.span[0]), max(end, part.span[1])) if part.span else (begin, end)
    moved = (spans.begin_ns + part.placed(spans.begin_ns), spans.end_ns + part.placed(spans.end_ns))
    return replace(spans, begin_ns=moved[0], end_ns=moved[1])


def _moved(before: HostOffset, now: HostOffset, span: tuple[int, int] | None) -> bool:
    """Whether spans between two moments stand elsewhere now, by more than they are exact and anybody sees."""
    if span is None:
        return False
    moments = np.linspace(*span, 9).astype(np.int64)
    return bool(np.abs(now(moments) - before(moments)).max() > max(_LEAST_MOVE_NS, now.error_ns or 0))
