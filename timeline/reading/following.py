"""Following the parts of a job that is still recording: each byte is read once, and every whole event is taken over.

A part is a JSON array at any moment: the recorder writes new events over the array's end. A reader may find an event
that is only half written; it is left for the next time.

Where there is too much to read it all at once, `PartFollower.skip` goes on near the end, and what is left out becomes a
*hole* that `PartFollower.fill` reads later. What events behind a hole need of it (lists of tensors, samples of the
clock) is looked up at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ringtune.errors import TraceIoError
from ringtune.timeline.reading.collect import Collector
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.interpretation import part_info
from ringtune.timeline.reading.native_blocks import BlockReader
from ringtune.timeline.reading.stream import SPACE, parse_inside
from ringtune.timeline.spans import Instant, PartInfo, SpanTable
from ringtune.timeline.vocabulary import CLOCK, TENSORS_EVENT

BLOCK_BYTES = 4 << 20
"""Most that is taken over in one go."""

_NEEDED = tuple(f'{{"name":"{name}"'.encode() for name in (TENSORS_EVENT, CLOCK))
"""How events begin that later events refer to."""


@dataclass
class Hole:
    """Bytes of a file that were left out, between two events; ``begin`` grows as they are read."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        """How many bytes are left."""
        return self.end - self.begin


class PartFollower:
    """Follows one file of a rank's part and reads each event once; counters are left out.

    Args:
        path: The file, not packed.
        spans: Takes the spans of this and other files, whose names then share their codes.
        opened: Opens the file for reading and returns its descriptor, which is closed here.

    Attributes:
        bytes_of_packed: About how many bytes of text a byte of the file stands for.
        holes: What was left out and not read since, in the order of the file.
        ended: The last `follow` reached the end of the file.
    """

    bytes_of_packed = 1

    def __init__(self, path: Path, spans: SpanBuilder, opened: Callable[[Path], int]) -> None:
        self.path = path
        self._opened = opened
        self._collector = Collector(spans)
        self._blocks = BlockReader(spans)
        self._spans = spans
        self._offset = 0
        self._inode: int | None = None
        self.holes: list[Hole] = []
        self.ended = True

    @property
    def instants(self) -> tuple[Instant, ...]:
        """Rare events read so far, on the part's own clock."""
        return tuple(self._collector.instants)

    @property
    def instant_count(self) -> int:
        """How many there are."""
        return len(self._collector.instants)

    @property
    def offset(self) -> int:
        """Where reading goes on; everything before was read, but for the holes."""
        return self._offset

    @property
    def read_bytes(self) -> int:
        """Bytes that are not read again."""
        return self._offset - sum(hole.length for hole in self.holes)

    def follow(self, limit_bytes: int | None = None) -> SpanTable | None:
        """Read at most so much (by default `BLOCK_BYTES`) of what is new; None when nothing whole has come.

        Raises:
            TraceIoError: The file is another one than before or shorter, so that what was read of it is void; or what
                follows is no event.
            OSError: It cannot be read.
        """
        limit = limit_bytes or BLOCK_BYTES
        with self._open() as file:
            file.seek(self._offset)
            block = file.read(limit)
        self.ended = len(block) < limit
        rest = self._take(block.removeprefix(b"[") if self._offset == 0 else block)
        if rest is None:
            if len(block) >= BLOCK_BYTES:
                raise TraceIoError(f"{self.path}: cannot be followed: the text after byte {self._offset} is no event")
            return None
        self._offset += len(block) - rest
        return self._spans.take()

    def _take(self, block: bytes, *, ends: bool = False, filling: bool = False) -> int | None:
        """Take over the events at the begin of a block, and return how many bytes are left; None without any.

        Args:
            block: Text that begins with an event.
            ends: It may end with one, too.
            filling: It is of a hole: the events that others refer to (`_NEEDED`) are known already.
        """
        text, left = whole_lines(block, ends=ends)
        events = self._blocks.read(_without_needed(text) if filling else text) if text else None
        if events is None:
            found = whole_events(block, ends=ends)
            if found is None:
                return None
            events, left = found
            self._blocks.learn(events)
        self._collector.add(clockless(events) if filling else _without_counters(events))
        return left

    def skip(self, keep_bytes: int) -> None:
        """Go on with the first event within the last so many bytes; what lies before it becomes a hole.

        Looks through what it leaves out for what later events need; nothing happens where nothing is left out.

        Raises:
            TraceIoError: See `follow`.
            OSError: It cannot be read.
        """
        with self._open() as file:
            start = os.fstat(file.fileno()).st_size - keep_bytes
            if start <= self._offset:
                return
            file.seek(start)
            at = file.read(keep_bytes).find(b"\n{")
            if at < 0:
                return
            hole = Hole(self._offset, start + at + 1)
            self._learn(_needed(file, hole))
        self.holes.append(hole)
        self._offset = hole.end

    def _learn(self, events: list[Any]) -> None:
        self._collector.add(events)
        self._blocks.learn(events)

    def fill(self, limit_bytes: int) -> SpanTable | None:
        """Read at most so much of the first hole and return its spans; None where there is no hole.

        Raises:
            TraceIoError: See `follow`.
            OSError: It cannot be read.
        """
        if not self.holes:
            return None
        hole = self.holes[0]
        with self._open() as file:
            for limit in (limit_bytes, BLOCK_BYTES):
                file.seek(hole.begin)
                block = file.read(min(limit, hole.length))
                all_of_it = len(block) == hole.length
                left = self._take(block, ends=all_of_it, filling=True)
                if all_of_it or left is not None:
                    break
        # Events that make no sense are left out.
        hole.begin += max(1, len(block) - (0 if all_of_it or left is None else left))
        if hole.length <= 0:
            self.holes.pop(0)
        return self._spans.take()

    def _open(self) -> BinaryIO:
        file = os.fdopen(self._opened(self.path), "rb")
        status = os.fstat(file.fileno())
        if self._inode not in (None, status.st_ino) or status.st_size < self._offset:
            file.close()
            raise TraceIoError(f"{self.path}: was replaced while it was followed; read it from its start")
        self._inode = status.st_ino
        return file

    def part(self) -> PartInfo | None:
        """Return what the file says about itself; None before its header has come.

        Raises:
            TraceIoError: Its header makes no sense.
        """
        for pid in self._collector.headers:
            return part_info(self.path, pid, self._collector, truncated=False)
        return None


def _needed(file: BinaryIO, hole: Hole) -> list[Any]:
    """Return the events of a hole that those behind it need."""
    found, rest, at = list[Any](), b"", hole.begin
    file.seek(at)
    while at < hole.end and (read := file.read(min(BLOCK_BYTES, hole.end - at))):
        at += len(read)
        block = rest + read
        end = len(block) if at >= hole.end else block.rfind(b"\n") + 1
        found += needed_of(block[:end])
        rest = block[end:] if len(block) - end < BLOCK_BYTES else b""
    return found


def needed_of(text: bytes) -> list[Any]:
    """Return the events of whole lines that those behind them need."""
    found = list[Any]()
    for beginning in _NEEDED:
        place = text.find(beginning)
        while place >= 0:
            stop = text.find(b"\n", place)
            found += parse_inside(text[place : stop if stop >= 0 else len(text)]) or []
            place = text.find(beginning, place + 1)
    return found


def clockless(events: list[Any]) -> list[dict[str, Any]]:
    """Return events of a hole: samples of the clock are known since it was left out."""
    return [one for one in _without_counters(events) if one.get("name") != CLOCK]


def _without_needed(text: bytes) -> bytes:
    """Return lines without those of `_NEEDED`."""
    return b"\n".join(line for line in text.split(b"\n") if not line.startswith(_NEEDED))


def _without_counters(events: list[Any]) -> list[dict[str, Any]]:
    return [event for event in events if isinstance(event, dict) and event.get("ph") != "C"]


def whole_lines(block: bytes, *, ends: bool = False) -> tuple[bytes, int]:
    """Return the lines at the begin of a block that hold whole events if they are as the recorder writes them, and how
    many bytes are left.

    Args:
        block: See `whole_events`.
        ends: See `whole_events`.
    """
    inside = block.rstrip(SPACE)
    if ends and inside.endswith((b"}", b"},")):
        return inside, 0
    text = inside[:-1].rstrip(SPACE)
    if inside.endswith(b"]") and text.endswith(b"}"):
        # The next events will be written over the array's end.
        return text, len(block) - len(text)
    cut = max(0, inside.rfind(b"\n{"))
    return inside[:cut], len(block) - cut


def whole_events(block: bytes, *, ends: bool = False) -> tuple[list[Any], int] | None:
    """Return the events that are whole at the begin of a block, and how many bytes are left; None without any.

    Args:
        block: Text that begins with an event.
        ends: It may end with one, too.
    """
    if ends and (events := parse_inside(block)):
        return events, 0
    inside = block.rstrip(SPACE)
    if inside.endswith(b"]"):
        events = parse_inside(inside[:-1])
        if events is not None:
            # The next events will be written over the array's end.
            return (events, len(block) - len(inside[:-1].rstrip(SPACE))) if events else None
    cut = inside.rfind(b"\n{")
    events = parse_inside(inside[:cut]) if cut > 0 else []
    if events is None:
        events, cut = _lines(inside)
    return (events, len(block) - cut) if events else None


def _lines(inside: bytes) -> tuple[list[Any], int]:
    """Return the events up to the first line that is none, and where that begins: ringtune writes one a line."""
    events: list[Any] = []
    at = 0
    for line in inside.splitlines(keepends=True):
        found = parse_inside(line)
        if found is None:
            break
        events += found
        at += len(line)
    return events, at
