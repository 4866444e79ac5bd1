"""Following parts that are packed while they are recorded: as `following`, through one decompressor.

The recorder ends every block so that it can be unpacked at once. A packed file can only be unpacked from its begin.
Where a stretch is left out it is unpacked and dropped, and a copy of the unpacker stays with the hole, from which the
stretch can be read later.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringtune.errors import TraceIoError
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.following import BLOCK_BYTES, Hole, PartFollower, needed_of
from ringtune.timeline.spans import SpanTable

TEXT_OF_PACKED = 10
"""About how many bytes of text a packed byte stands for."""
_GZIP = 31


@dataclass
class PackedHole(Hole):
    """Packed bytes whose events were left out; ``left``: text before them, ``closing``: behind them, up to an event."""

    unpacker: Any = None
    left: bytes = b""
    closing: bytes = b""


class PackedFollower(PartFollower):
    """Reads one packed file; offsets, holes and limits count text as `TEXT_OF_PACKED` times what is packed.

    Args:
        path: The file, packed with gzip.
        spans: See `PartFollower`.
        opened: See `PartFollower`.
    """

    bytes_of_packed = TEXT_OF_PACKED

    def __init__(self, path: Path, spans: SpanBuilder, opened: Callable[[Path], int]) -> None:
        super().__init__(path, spans, opened)
        self._unpacker: Any = zlib.decompressobj(_GZIP)
        self._left = b""
        self._begun = False

    def follow(self, limit_bytes: int | None = None) -> SpanTable | None:
        """See `PartFollower.follow`."""
        limit = max(1, (limit_bytes or BLOCK_BYTES) // TEXT_OF_PACKED)
        with self._open() as file:
            file.seek(self._offset)
            packed = file.read(limit)
        self.ended = len(packed) < limit
        self._offset += len(packed)
        text = self._begin_of(self._left + self._unpacked(packed))
        rest = self._take(text, ends=True)  # a block ends with an event
        if rest is None:
            if len(text) >= 2 * BLOCK_BYTES:
                raise TraceIoError(f"{self.path}: cannot be followed: before byte {self._offset} there is no event")
            self._left = text
            return None
        self._left = text[len(text) - rest :]
        return self._spans.take()

    def skip(self, keep_bytes: int) -> None:
        """See `PartFollower.skip`."""
        with self._open() as file:
            end = os.fstat(file.fileno()).st_size
            start = end - max(1, keep_bytes // TEXT_OF_PACKED)
            if start <= self._offset:
                return
            hole = PackedHole(self._offset, start, self._unpacker.copy(), self._left)
            file.seek(self._offset)
            needed, text = list[Any](), self._left
            while hole.end > (at := file.tell()):
                text += self._unpacked(file.read(min(BLOCK_BYTES, hole.end - at)))
                cut = text.rfind(b"\n") + 1
                needed += needed_of(text[:cut])
                text = text[cut:]
            # The unpacker has already taken a part of the line at the hole's end.
            before, after = text, self._unpacked(file.read(end - hole.end))
        cut = (before + after).find(b"\n{") + 1
        hole.closing = (before + after)[len(before) : cut] if cut > len(before) else b""
        self._left = (before + after)[cut:] if cut else before + after
        self._begun = True
        self._learn(needed)
        self.holes.append(hole)
        self._offset = end

    def fill(self, limit_bytes: int) -> SpanTable | None:
        """See `PartFollower.fill`."""
        if not self.holes:
            return None
        hole = self.holes[0]
        assert isinstance(hole, PackedHole)
        with self._open() as file:
            file.seek(hole.begin)
            packed = file.read(min(hole.length, max(1, limit_bytes // TEXT_OF_PACKED)))
        hole.begin += len(packed)
        text = hole.left + hole.unpacker.decompress(packed)
        done = hole.length <= 0
        rest = self._take(text.removeprefix(b"[") + (hole.closing if done else b""), ends=done, filling=True)
        if done:
            self.holes.pop(0)
        hole.left = text[len(text) - rest :] if rest is not None else text
        return self._spans.take()

    def _unpacked(self, packed: bytes) -> bytes:
        try:
            text: bytes = self._unpacker.decompress(packed)
        except zlib.error as error:
            raise TraceIoError(f"{self.path}: cannot be unpacked: {error}") from error
        return text

    def _begin_of(self, text: bytes) -> bytes:
        """Text without the bracket that opens the file."""
        if self._begun or not text:
            return text
        self._begun = True
        return text.removeprefix(b"[")
