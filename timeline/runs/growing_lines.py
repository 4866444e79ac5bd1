"""Lines of a file that another process is still writing: each is read once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class GrowingLines:
    """Reads the new lines of a growing file. Not safe to use from several threads at once.

    Args:
        path: The file. It may be missing, grow, or be replaced by another one.
        offset: Bytes at its begin that are skipped.
        limit_bytes: The most that is read at once. Of a longer file only the end is read when it is opened first.
        opener: Opens the file for reading and returns its descriptor; it may refuse by raising.

    Attributes:
        restarts: How often the file turned out to be another one or shorter, so that the earlier lines are void.
        only_the_end: The begin of the file was skipped because of the limit.
    """

    def __init__(
        self, path: Path, offset: int = 0, limit_bytes: int | None = None, opener: Callable[[], int] | None = None
    ) -> None:
        self.restarts = 0
        self.only_the_end = False
        self._path, self._offset, self._limit = path, offset, limit_bytes
        self._opener = opener or (lambda: os.open(path, os.O_RDONLY))
        self._inode: int | None = None

    def read(self) -> list[bytes]:
        """Return the whole lines that are new; a line without its end is read next time. A missing file has none.

        Raises:
            OSError: The file cannot be read.
        """
        if not os.path.lexists(self._path):
            return []
        with os.fdopen(self._opener(), "rb") as file:
            status = os.fstat(file.fileno())
            jumped = self._note_the_file(status.st_ino, status.st_size)
            file.seek(self._offset)
            data = file.read(-1 if self._limit is None else self._limit)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        # After a jump the first line is the end of one.
        return whole.splitlines()[1 if jumped else 0 :]

    def _note_the_file(self, inode: int, length: int) -> bool:
        """Begin anew where the file is another one; whether reading goes on in the middle of it."""
        if inode == self._inode and length >= self._offset:
            return False
        if self._inode is not None:
            self.restarts += 1
            self._offset = 0
        self._inode = inode
        self.only_the_end = self._limit is not None and length - self._offset > self._limit
        if self._limit is not None and self.only_the_end:
            self._offset = length - self._limit
        return self.only_the_end
