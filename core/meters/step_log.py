"""The step log: one line of JSON a step and rank, readable at any moment."""

from __future__ import annotations

from pathlib import Path

import orjson

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.output_file import open_private
from ringtune.stats import StepStats


class StepLog:
    """Appends step statistics to ``steps/rank-NNNNN.jsonl`` of a run.

    Each line is written with one system call, so a killed job leaves whole lines. Owns the open file.

    Args:
        run: The run's folder.
        rank: Rank whose statistics are written.

    Raises:
        RingtuneError: The file cannot be opened.
    """

    def __init__(self, run: Path, rank: int) -> None:
        self.path = layout.step_log(run, rank)
        try:
            self._file = open_private(self.path, "ab")
        except OSError as error:
            raise RingtuneError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def append(self, stats: StepStats) -> None:
        """Write the line of a step.

        Raises:
            RingtuneError: It cannot be written, for example because the disk is full.
        """
        try:
            self._file.write(orjson.dumps(stats.as_dict(), option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            raise RingtuneError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()
