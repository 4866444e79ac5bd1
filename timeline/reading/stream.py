"""Events of a trace file, block by block: Chrome's array or object form, plain or gzip, whole or torn.

Memory stays bounded by the block, however large the file. A block is cut where two events meet (a line that begins
with ``{``, or ``},{"``: neither can stand inside a JSON string) and parsed by orjson at once. Where that fails
(another layout, a torn tail, bytes that are no UTF-8) it is walked event by event, and what is whole is kept.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from ringtune.errors import TraceIoError

CHUNK_BYTES = 1 << 20
LONGEST_EVENT_BYTES = 64 << 20
"""An event (or a file's tail) that is longer counts as damage."""

GZIP = b"\x1f\x8b"
"""How a packed file begins."""

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
SPACE = b" \t\r\n"
"""What JSON allows between its tokens."""
_DECODER = json.JSONDecoder(strict=False)


class EventStream:
    """Reads one trace file.

    Attributes:
        truncated: The file's tail is missing or damaged; known once all blocks were read.
        document: Keys beside ``traceEvents`` of the object form; known once all blocks were read.
        skipped: Events that are no JSON orjson accepts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        self.document: dict[str, Any] = {}
        self.skipped = 0
        self._prefix: bytes | None = None  # what stands before the events in the object form
        self._closed = False

    @property
    def kineto(self) -> bool:
        """Whether PyTorch's profiler wrote the file; known once the first block was read."""
        return any(key in (self._prefix or b"") for key in (b'"schemaVersion"', b'"deviceProperties"'))

    def blocks(self) -> Iterator[list[Any]]:
        """Yield lists of events (any JSON value where a file is odd).

        Raises:
            TraceIoError: The file cannot be read or is no trace at all.
        """
        yield from self._events(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes, unpacked; a torn gzip file ends early.

        Raises:
            TraceIoError: The file cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                yield from self._chunks(file)
        except OSError as error:
            raise TraceIoError(f"{self.path}: cannot be read ({error.strerror or error}); check the path") from error

    def _chunks(self, file: BinaryIO) -> Iterator[bytes]:
        packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        unpack = zlib.decompressobj(wbits=31) if packed else None
        try:
            while raw := file.read(CHUNK_BYTES):
                if unpack is None:
                    yield raw
                    continue
                while raw:
                    yield unpack.decompress(raw, CHUNK_BYTES)
                    raw = unpack.unconsumed_tail or unpack.unused_data
                    if unpack.eof:
                        unpack = zlib.decompressobj(wbits=31)  # files may be several gzip members
            if unpack is not None:
                yield unpack.flush()
        except zlib.error:
            return

    def _events(self, chunks: Iterator[bytes]) -> Iterator[list[Any]]:
        buffer = self._open(chunks)
        for chunk in chunks:
            if self._closed:
                buffer = self._keep_tail(buffer + chunk)
                continue
            events, buffer = self._whole_events(buffer + chunk)
            yield events
            if len(buffer) > LONGEST_EVENT_BYTES:
                self.truncated = True
                return
        if not self._closed:
            events, buffer = self._last_events(buffer)
            yield events
        self._finish(buffer)

    def _open(self, chunks: Iterator[bytes]) -> bytes:
        """Find where the events begin; return the bytes from there on."""
        start = b""
        for chunk in chunks:
            start = (start + chunk).removeprefix(b"\xef\xbb\xbf").lstrip(SPACE)
            if start:
                break
        if start[:1] == b"[":
            return start[1:]
        if start[:1] != b"{":
            seen = f"starts with {start[:12]!r}" if start else "is empty"
            raise TraceIoError(f"{self.path}: no trace: the file {seen}; give a Chrome trace (JSON) or a run folder")
        while (key := _EVENTS_KEY.search(start)) is None:
            chunk = next(chunks, b"")
            if not chunk or len(start) > LONGEST_EVENT_BYTES:
                raise TraceIoError(
                    f'{self.path}: no trace: a JSON object without a list "traceEvents"; '
                    "give a Chrome trace or a run folder"
                )
            start += chunk
        self._prefix = start[: key.start()]
        return start[key.end() :]

    def _whole_events(self, buffer: bytes) -> tuple[list[Any], bytes]:
        """Parse up to the last place where two events meet; return the events and the rest."""
        cut = buffer.rfind(b"\n{")
        if cut <= 0:
            cut = buffer.rfind(b'},{"') + 1
        events = parse_inside(buffer[:cut]) if cut > 0 else []
        return self._walk(buffer) if events is None else (events, buffer[cut:])

    def _last_events(self, buffer: bytes) -> tuple[list[Any], bytes]:
        """Parse the file's end; return the events and what stands after the array."""
        if self._prefix is None:
            cut = len(buffer.rstrip(SPACE)) - 1
        else:
            cut = buffer.rfind(b"\n]")  # how ringtune ends the events; other files are walked
            cut += cut >= 0
        if cut >= 0 and buffer[cut : cut + 1] == b"]":
            events = parse_inside(buffer[:cut])
            if events is not None:
                self._closed = True
                return events, buffer[cut + 1 :]
        return self._walk(buffer)

    def _walk(self, buffer: bytes) -> tuple[list[Any], bytes]:
        """Go event by event until the array's end or until something is not whole."""
        # Latin-1 maps every byte to one character: positions are byte positions whatever the encoding.
        text = buffer.decode("latin-1")
        events: list[Any] = []
        at = 0
        while True:
            between = _BETWEEN.match(text, at)
            at = between.end() if between else at
            if text[at : at + 1] == "]":
                self._closed = True
                return events, buffer[at + 1 :]
            try:
                _, end = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError):
                return events, buffer[at:]
            if end == len(text) and text[at] not in '{["':
                return events, buffer[at:]  # a number that may go on in the next chunk
            event = _forgiving(buffer[at:end])
            if event is None:
                self.skipped += 1
            else:
                events.append(event)
            at = end

    def _keep_tail(self, tail: bytes) -> bytes:
        if len(tail) > LONGEST_EVENT_BYTES:
            self.truncated = True
            return b""
        return tail

    def _finish(self, tail: bytes) -> None:
        if self._prefix is None:
            self.truncated = self.truncated or not self._closed or bool(tail.strip(SPACE))
        elif not (self._closed and self._read_document(tail)):
            self.truncated = True
            self._read_document(b"}")  # what stands before the events is whole

    def _read_document(self, tail: bytes) -> bool:
        """Take the keys beside the events; whether these can be read with that end of the file."""
        try:
            document = orjson.loads((self._prefix or b"") + b'"traceEvents":[]' + tail)
        except orjson.JSONDecodeError:
            return False
        self.document = document if isinstance(document, dict) else {}
        return True


def parse_inside(inside: bytes) -> list[Any] | None:
    """Parse the inside of an array, commas at its ends allowed; None when that is not JSON."""
    try:
        events = orjson.loads(b"[" + inside.strip(b" \t\r\n,") + b"]")
    except orjson.JSONDecodeError:
        return None
    return events if isinstance(events, list) else None


def _forgiving(event: bytes) -> Any:
    """Parse one event; repairs broken UTF-8, raw control characters and NaN; None when it cannot be kept."""
    try:
        return orjson.loads(event)
    except orjson.JSONDecodeError:
        pass
    try:
        return orjson.loads(orjson.dumps(_DECODER.decode(event.decode("utf-8", "replace"))))
    except (ValueError, TypeError, RecursionError):
        return None
