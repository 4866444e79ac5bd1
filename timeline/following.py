"""Following the parts of a job that is still recording: each byte is read once, what is whole of it taken over.

A part is a JSON array at any moment: the recorder writes new events over the array's end. Whoever reads meanwhile may
find an event that is only half there; it is left for the next time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringtune.errors import TraceIoError
from ringtune.timeline.collect import Collector
from ringtune.timeline.columns import SpanBuilder
from ringtune.timeline.reader import part_info
from ringtune.timeline.spans import Instant, PartInfo, SpanTable
from ringtune.timeline.stream import SPACE, parse_inside

BLOCK_BYTES = 4 << 20
"""Most that is taken over in one go."""


class PartFollower:
    """Reads one file of a rank's part, again and again, each event once.

    Args:
        path: The file, not packed.
        spans: Takes the spans of this and other files, whose names then share their codes.
        opened: Opens the file for reading and returns its descriptor, which is closed here.

    """

    def __init__(self, path: Path, spans: SpanBuilder, opened: Callable[[Path], int]) -> None:
        self.path = path
        self._opened = opened
        self._collector = Collector(spans)
        self._spans = spans
        self._offset = 0
        self._inode: int | None = None

    @property
    def instants(self) -> tuple[Instant, ...]:
        """Rare events read so far, on the part's own clock."""
        return tuple(self._collector.instants)

    @property
    def offset(self) -> int:
        """Bytes that were read for good."""
        return self._offset

    def follow(self) -> SpanTable | None:
        """Read at most `BLOCK_BYTES` of what is new and return its spans; None when nothing whole has come.

        Raises:
            TraceIoError: The file is another one than before or shorter, so that what was read of it is void; or what
                follows is no event.
            OSError: It cannot be read.
        """
        with os.fdopen(self._opened(self.path), "rb") as file:
            status = os.fstat(file.fileno())
            if self._inode not in (None, status.st_ino) or status.st_size < self._offset:
                raise TraceIoError(f"{self.path}: was replaced while it was followed; read it from its start")
            self._inode = status.st_ino
            file.seek(self._offset)
            block = file.read(BLOCK_BYTES)
        found = _whole(block.removeprefix(b"[") if self._offset == 0 else block)
        if found is None:
            if len(block) == BLOCK_BYTES:
                raise TraceIoError(f"{self.path}: cannot be followed: what comes after byte {self._offset} is no event")
            return None
        events, rest = found
        self._offset += len(block) - rest
        self._collector.add(events)
        return self._spans.take()

    def part(self) -> PartInfo | None:
        """Return what the file says about itself; None before its header has come.

        Raises:
            TraceIoError: Its header makes no sense.
        """
        for pid in self._collector.headers:
            return part_info(self.path, pid, self._collector, truncated=False)
        return None


def _whole(block: bytes) -> tuple[list[Any], int] | None:
    """Return the events that are whole at the begin of a block, and how many bytes are left; None without any."""
    inside = block.rstrip(SPACE)
    if inside.endswith(b"]"):
        events = parse_inside(inside[:-1])
        if events is not None:
            # Where the array ends now, the next events will stand.
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
