"""Output of the ranks: bytes in, lines with a prefix out.

A rank's output arrives in pieces that end anywhere. Whole lines are passed on at once; the unfinished end of a line
(a progress bar, a prompt, a very long line) is passed on after a moment, and the console remembers whose line stands
open so that another rank's line begins on a new one. Bytes are never decoded on the way to the terminal or a file,
so what is not UTF-8 arrives as it was.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from typing import TextIO

from ringtune import standard_streams

OPEN_LINE_DELAY_S = 0.25
"""How long an unfinished line is held back to be completed."""
OPEN_LINE_BYTES = 1 << 16
"""Size from which an unfinished line is passed on at once."""

# A carriage return begins a line anew (progress bars); at the very end it may be half of \r\n, so there it waits.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\n|\Z)")
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)

Write = Callable[[bytes], None]


class Lines:
    """One stream of one rank: cuts bytes into lines and holds back the unfinished end for a moment."""

    def __init__(self, emit: Write) -> None:
        self._emit = emit
        self._pending = b""
        self._since = 0.0

    @property
    def waiting(self) -> bool:
        """Whether an unfinished line is held back."""
        return bool(self._pending)

    def feed(self, data: bytes) -> None:
        """Take bytes as they arrived."""
        buffer = self._pending + data
        start = 0
        for end in _LINE_END.finditer(buffer):
            self._emit(buffer[start : end.end()])
            start = end.end()
        self._pending = buffer[start:]
        self._since = time.monotonic()
        if len(self._pending) >= OPEN_LINE_BYTES:
            self.flush()

    def flush_stale(self) -> None:
        """Pass on an unfinished line that has waited long enough."""
        if self._pending and time.monotonic() - self._since >= OPEN_LINE_DELAY_S:
            self.flush()

    def flush(self) -> None:
        """Pass on the unfinished line."""
        if self._pending:
            pending, self._pending = self._pending, b""
            self._emit(pending)


class Console:
    """Where the lines of all ranks meet: this process's standard output and error."""

    def __init__(self, *, prefix: bool = True, timestamp: bool = False) -> None:
        self._prefix = prefix
        self._timestamp = timestamp
        self._streams: dict[str, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}
        # On a terminal both streams end in the same file, where a line left open on one would run into the other's.
        same = _same_file(sys.stdout, sys.stderr)
        self._sink = {"stdout": "stdout", "stderr": "stdout" if same else "stderr"}
        self._open: dict[str, tuple[int, str]] = {}

    def put(self, rank: int, stream: str, piece: bytes) -> None:
        """Write a line, or a piece of one, of a rank's ``stdout`` or ``stderr``."""
        sink, source = self._sink[stream], (rank, stream)
        head = b""
        if self._open.get(sink) != source:
            self.close_line(stream)
            head = self._head(rank, stream)
        self._write(stream, head + piece)
        if piece.endswith((b"\n", b"\r")):
            self._open.pop(sink, None)
        else:
            self._open[sink] = source

    def say(self, text: str) -> None:
        """Print a message of the launcher on standard error."""
        self.close_line("stderr")
        self._write("stderr", f"ringtune: {text}\n".encode())

    def close_line(self, stream: str) -> None:
        """End the unfinished line of the sink that `stream` goes to."""
        if self._open.pop(self._sink[stream], None) is not None:
            self._write(stream, b"\n")

    def _head(self, rank: int, stream: str) -> bytes:
        head = ""
        if self._timestamp:
            now = time.time()
            head = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d} "
        if self._prefix:
            label = f"[{rank}]"
            if _wants_colour(self._streams[stream]):
                label = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label}\x1b[0m"
            head += f"{label} "
        return head.encode()

    def _write(self, stream: str, data: bytes) -> None:
        target = self._streams[stream]
        buffer = getattr(target, "buffer", None)
        try:
            if buffer is None:  # some notebooks and test runners replace it by a stream of text only
                target.write(data.decode("utf-8", "replace"))
            else:
                buffer.write(data)
            target.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            # The job matters more than its output: it goes on with the streams that can still be written.
            standard_streams.silence(target)
            if stream == "stdout":
                self.say(f"warning: {stream} cannot be written any more ({error.strerror}), the job goes on")


class TextLines:
    """Joins pieces into whole lines of text for `LaunchOptions.on_line`."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._parts: list[bytes] = []

    def put(self, piece: bytes) -> None:
        """Take a line or a piece of one."""
        self._parts.append(piece)
        if piece.endswith((b"\n", b"\r")):
            self.end()

    def end(self) -> None:
        """Hand over what is there as a line."""
        if self._parts:
            text = b"".join(self._parts).decode("utf-8", "replace").rstrip("\r\n")
            self._parts.clear()
            self._on_line(text)


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _same_file(one: TextIO, other: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except (OSError, ValueError):
        return False
