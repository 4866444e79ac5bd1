"""Where a rank stands in Python: when nothing moves for long, when it gets SIGTERM, and when an error ends it."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.meters.sample import Sample
from ringtune.output_file import open_private

_FAILURES = (ValueError, OSError, AttributeError)
"""Where a platform or an interpreter knows no such signal, or its handlers belong to somebody else."""
_told: set[int] = set()
"""This process, while SIGTERM writes its stacks."""


def _forget() -> None:
    """Let SIGTERM end a forked child (a worker of a data loader) without a word in its parent's file."""
    if _told:
        _told.clear()
        with suppress(*_FAILURES):
            faulthandler.unregister(signal.SIGTERM)


os.register_at_fork(after_in_child=_forget)


class StackLog:
    """Writes ``stacks/rank-NNNNN.txt`` of a run; the file is there only while there is something to say.

    A text of three kinds of sections, each below a line that says why it was written: the main thread where no
    operation was finished for ``quiet_ns``; all threads where SIGTERM ends the process (by `faulthandler`, which also
    sees a main thread that never returns to Python; handlers of the script still run); the error that ended the
    script. Owns the file. Made and closed on the thread that trains; `append` is called by the sampler.

    Args:
        run: The run's folder.
        rank: The rank.
        quiet_ns: Time without progress after which the main thread is written.
        progress: Returns what changes whenever this rank gets on.

    Raises:
        RingtuneError: The file cannot be opened.
    """

    def __init__(self, run: Path, rank: int, quiet_ns: int, progress: Callable[[], object]) -> None:
        self.path = layout.stack_file(run, rank)
        self._quiet_ns = quiet_ns
        self._progress = progress
        self._seen: object = None
        self._since_ns = time.monotonic_ns()
        self._written = False
        try:
            # "a": what faulthandler adds stands behind everything else, also after a truncation.
            self._file = open_private(self.path, "ab")
            self._file.truncate(0)  # of a job that used the folder before, or of the rank that this one replaces
        except OSError as error:
            raise RingtuneError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        with suppress(*_FAILURES):
            faulthandler.register(signal.SIGTERM, file=self._file, all_threads=True, chain=True)
            _told.add(os.getpid())

    def append(self, _sample: Sample) -> None:
        """Look whether the rank got on; once it does again, what was written is removed."""
        now_ns, seen = time.monotonic_ns(), self._progress()
        if seen != self._seen:
            self._seen, self._since_ns = seen, now_ns
            if self._written:
                self._file.truncate(0)
                self._written = False
        elif not self._written and now_ns - self._since_ns >= self._quiet_ns:
            self._written = True
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            quiet_s = (now_ns - self._since_ns) / 1e9
            self._write(f"no operation finished for {quiet_s:.0f} s", "".join(traceback.format_stack(frame)))

    def close(self) -> None:
        """Nothing: the sampler may end before the rank does."""

    def end(self) -> None:
        """Write the error that ended the script, if one did, and remove an empty file; idempotent."""
        if self._file.closed:
            return
        _forget()
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self._write("the script ended by an error", "".join(traceback.format_exception(error)))
        empty = not os.fstat(self._file.fileno()).st_size
        self._file.close()
        if empty:
            self.path.unlink(missing_ok=True)

    def _write(self, why: str, text: str) -> None:
        self._file.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')}: {why}\n{text}\n".encode("utf-8", "replace"))
