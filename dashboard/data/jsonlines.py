"""Rows of files of JSON lines that grow: each line is read once, so a running job costs only its new lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from ringtune.dashboard.data.files import Unreadable, open_inside
from ringtune.dashboard.units import plain, size
from ringtune.timeline.runs.growing_lines import GrowingLines

LIMIT_BYTES = 128 * 2**20
"""The longest file that is read whole; of a longer one only the end is read."""

PROBLEM_LIMIT = 20


class JsonRows:
    """Reads the objects of a file of JSON lines repeatedly, each line once.

    Args:
        run: Folder of the run; the file must lie in it.
        path: The file. It may be missing, grow, or be replaced.

    Attributes:
        rows: Objects read so far, in the file's order. The owner may clear them.
        problems: Sentences about lines that were skipped.
    """

    def __init__(self, run: Path, path: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._path = path
        self._lines = GrowingLines(path, limit_bytes=LIMIT_BYTES, opener=lambda: open_inside(run, path))
        self._line = self._restarts = 0

    @property
    def restarts(self) -> int:
        """How often the file turned out to be another one, so that the earlier rows are void."""
        return self._restarts

    def follow(self) -> int:
        """Read what is new and return how many rows came; a missing file has none.

        Raises:
            Unreadable: The file is a link out of the folder or no regular file.
        """
        before = len(self.rows)
        lines = self._lines.read()
        if self._lines.restarts != self._restarts:
            self._restarts, self._line, before = self._lines.restarts, 0, 0
            self.rows, self.problems = [], []
        if self._lines.only_the_end and not self._line and not self.problems:
            self._problem(f"is larger than {size(LIMIT_BYTES)}; only its end is shown")
        for line in lines:
            self._take(line)
        return len(self.rows) - before

    def _take(self, line: bytes) -> None:
        self._line += 1
        if not line.strip():
            return
        try:
            row = orjson.loads(line)
        except (orjson.JSONDecodeError, RecursionError):
            self._problem(f"line {self._line} is not valid JSON; it is left out")
            return
        if isinstance(row, dict):
            self.rows.append(row)
        else:
            self._problem(f"line {self._line} is not a JSON object; it is left out")

    def _problem(self, sentence: str) -> None:
        if len(self.problems) < PROBLEM_LIMIT:
            self.problems.append(f"{plain(self._path.parent.name)}/{plain(self._path.name)} {sentence}")


def read_rows(run: Path, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the objects of a file of JSON lines and sentences about what was left out; a missing file is empty."""
    followed = JsonRows(run, path)
    try:
        followed.follow()
    except Unreadable as error:
        return [], [str(error)]
    return followed.rows, followed.problems
