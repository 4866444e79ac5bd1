"""Following files of JSON lines: what was read stays read, so a running job costs only its new lines."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from ringtune.dashboard.data.files import Unreadable, open_inside
from ringtune.dashboard.units import plain, size

LIMIT_BYTES = 128 * 2**20
"""Longest file that is read whole; of a longer one only the end is."""

PROBLEM_LIMIT = 20


@dataclass
class LineFollower:
    """Reads the objects of a file of JSON lines, again and again, each line once.

    Attributes:
        run: Folder of the run; the file must lie in it.
        path: The file. It may be missing, grow, or be replaced.
        rows: Objects read so far, in the file's order. Who has taken them over may clear them.
        restarts: How often the file turned out to be another one, so that everything before is void.
        problems: Sentences about lines that were skipped.
    """

    run: Path
    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    restarts: int = 0
    _offset: int = 0
    _line: int = 0
    _inode: int = 0

    def follow(self) -> int:
        """Read what is new and return how many rows came; a missing file has none.

        Raises:
            Unreadable: The file is a link out of the folder or no regular file.
        """
        if not os.path.lexists(self.path):
            return 0
        before = len(self.rows)
        with os.fdopen(open_inside(self.run, self.path), "rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._restart(status.st_ino, status.st_size)
                before = 0
            stream.seek(self._offset)
            content = stream.read(LIMIT_BYTES)
        # A line without its end is still being written; it is read next time.
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            self._take(line)
        return len(self.rows) - before

    def _restart(self, inode: int, length: int) -> None:
        self.rows, self.problems = [], []
        self.restarts += 1
        self._inode, self._line = inode, 0
        self._offset = max(0, length - LIMIT_BYTES)
        if self._offset:
            self._problem(f"is larger than {size(LIMIT_BYTES)}; only its end is shown")

    def _take(self, line: bytes) -> None:
        self._line += 1
        if not line.strip():
            return
        try:
            row = orjson.loads(line)
        except (orjson.JSONDecodeError, RecursionError):
            # After a jump into the middle the first line is a part of one.
            if self._line > 1 or not self.problems:
                self._problem(f"line {self._line} is not valid JSON; it is left out")
            return
        if isinstance(row, dict):
            self.rows.append(row)
        else:
            self._problem(f"line {self._line} is not a JSON object; it is left out")

    def _problem(self, sentence: str) -> None:
        if len(self.problems) < PROBLEM_LIMIT:
            self.problems.append(f"{plain(self.path.parent.name)}/{plain(self.path.name)} {sentence}")


def read_rows(run: Path, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the objects of a file of JSON lines and sentences about what was left out; a missing file is empty."""
    follower = LineFollower(run, path)
    try:
        follower.follow()
    except Unreadable as error:
        return [], [str(error)]
    return follower.rows, follower.problems
