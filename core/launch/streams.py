"""Where the ranks' output goes: the console, log files, a caller's function."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Iterable, Sequence
from functools import partial
from io import FileIO
from typing import BinaryIO

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.launch.options import LaunchOptions
from ringtune.launch.output import Console, Lines, TextLines
from ringtune.output_file import open_private
from ringtune.variable import without_password

_NAMES = ("stdout", "stderr")
_TAIL_BYTES, _TAIL_LINES = 4096, 20
"""How much of a rank's standard error is remembered, for the run folder of a job that fails."""
_ERROR_LENGTH = 400
_TRACEBACK = "Traceback (most recent call last):"
_NOT_THE_END = ("Exception ignored", "Exception in thread")
"""What Python writes before the traceback of an exception that did not end the program."""
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)(: .*)?")


def last_error(lines: Sequence[str]) -> str:
    """Return the exception that ended a Python program, type and message on one line, by what it wrote.

    Args:
        lines: Last lines of its standard error, none of them empty.

    Returns:
        At most 400 characters; empty where no exception is found.
    """
    error = ""
    for at, line in enumerate(lines):
        if line == _TRACEBACK and not (at and lines[at - 1].startswith(_NOT_THE_END)):
            # Its frames are indented, the exception follows them.
            error = next((end for end in lines[at + 1 :] if not end.startswith(" ")), "")
    if not error and _TRACEBACK not in lines:  # its head is lost, or it is a SyntaxError of the script, which has none
        error = next((line for line in reversed(lines) if _EXCEPTION.fullmatch(line)), "")
    return textwrap.shorten(error, _ERROR_LENGTH, placeholder=" ...")


class Streams:
    """Both streams of all ranks. Not thread-safe: belongs to the launcher's loop."""

    def __init__(self, num_proc: int, options: LaunchOptions) -> None:
        self._console = Console(prefix=options.prefix_output, timestamp=options.timestamp_output)
        self._echo = options.echo
        self._files = contextlib.ExitStack()
        self._copies: dict[tuple[int, str], list[BinaryIO]] = {}
        self._lines: dict[tuple[int, str], Lines] = {}
        self._texts: dict[tuple[int, str], TextLines] = {}
        self._tails: dict[int, bytes] = {}
        self._options = options
        # Horovod's names of folders: the number of a rank padded to the width of the largest.
        self._width = len(str(num_proc - 1))
        for rank in range(num_proc):
            self.open(rank)

    def open(self, rank: int) -> None:
        """Take output of one more rank.

        Raises:
            RingtuneError: Its log files cannot be written.
        """
        for name in _NAMES:
            self._lines[rank, name] = Lines(partial(self._emit, rank, name))
            if self._options.on_line is not None:
                self._texts[rank, name] = TextLines(partial(self._options.on_line, rank, name))
        try:
            self._open_copies(rank)
        except OSError as error:
            self.close()
            raise RingtuneError(f"{error.filename}: cannot be written: {error.strerror}") from None

    @property
    def waiting(self) -> bool:
        """Whether some unfinished line is held back for a moment."""
        return any(lines.waiting for lines in self._lines.values())

    def feed(self, rank: int, name: str, data: bytes) -> None:
        """Take bytes of a rank's ``stdout`` or ``stderr`` as they arrived."""
        for file in list(self._copies.get((rank, name), [])):
            try:
                file.write(data)
            except OSError as error:
                for copies in self._copies.values():  # a log has both streams of a rank
                    if file in copies:
                        copies.remove(file)
                self.say(f"warning: {file.name} is kept no further ({error.strerror}), the job goes on")
        self._lines[rank, name].feed(data)
        if name == "stderr":
            self._tails[rank] = (self._tails.get(rank, b"") + data)[-_TAIL_BYTES:]

    def last_lines(self, rank: int) -> list[str]:
        """Return the last lines of a rank's standard error, without passwords: pages and run folders show them."""
        lines = self._tails.get(rank, b"").decode("utf-8", "replace").splitlines()
        return [str(without_password(line)) for line in lines if line.strip()][-_TAIL_LINES:]

    def error_of(self, rank: int) -> str:
        """Return the Python exception that has ended a rank, as `last_error`."""
        return last_error(self.last_lines(rank))

    def forget_last_lines(self) -> None:
        """Begin anew with `last_lines`, for a job that is started again."""
        self._tails.clear()

    def flush_stale(self) -> None:
        """Show unfinished lines that have waited long enough."""
        for lines in self._lines.values():
            lines.flush_stale()

    def end(self, rank: int) -> None:
        """A rank has ended: show the rest of its output."""
        for name in _NAMES:
            self._lines[rank, name].flush()
            if (rank, name) in self._texts:
                self._texts[rank, name].end()

    def say(self, text: str) -> None:
        """Print a message of the launcher, or hand it to `LaunchOptions.on_say`."""
        (self._options.on_say or self._console.say)(text)

    def close(self) -> None:
        """Close log files and end a line that stands open."""
        for name in _NAMES:
            # The console may be a closed pipe, which is then the reason for closing.
            with contextlib.suppress(OSError):
                self._console.close_line(name)
        self._files.close()

    def _emit(self, rank: int, name: str, piece: bytes) -> None:
        if self._echo:
            self._console.put(rank, name, piece)
        if (rank, name) in self._texts:
            self._texts[rank, name].put(piece)

    def _open_copies(self, rank: int) -> None:
        options = self._options
        if options.keep_logs and options.run_dir is not None:
            self._copy_to(open_private(layout.log_file(options.run_dir, rank), "wb"), rank, _NAMES)
        if options.output_folder is not None:
            folder = options.output_folder / f"rank.{rank:0{self._width}d}"
            folder.mkdir(parents=True, exist_ok=True)
            for name in _NAMES:
                self._copy_to((folder / name).open("wb", buffering=0), rank, (name,))

    def _copy_to(self, file: FileIO, rank: int, names: Iterable[str]) -> None:
        """Copy streams to a file without a buffer, which holds all output even when the launcher is killed."""
        self._files.enter_context(file)
        for name in names:
            self._copies.setdefault((rank, name), []).append(file)
