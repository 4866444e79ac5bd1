"""The sample log: one line of JSON a sample, readable at any moment, never larger than its limit."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

import orjson

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.meters.sample import Sample
from ringtune.output_file import open_private

LIMIT_BYTES = 2 << 20
"""Size at which every second line is dropped: about 5000 samples."""


class SampleLog:
    """Appends samples to ``samples/rank-NNNNN.jsonl`` of a run.

    Each line is written with one system call, so a killed job leaves whole lines. A file that is full is replaced, in
    one piece, by one with every second line, and from then on every second sample is left out: so it always reaches
    back to the first. Owns the open file.

    Args:
        run: The run's folder.
        rank: Rank whose samples are written.
        limit_bytes: Largest size.

    Raises:
        RingtuneError: The file cannot be opened.
    """

    def __init__(self, run: Path, rank: int, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = layout.sample_log(run, rank)
        self._limit_bytes = limit_bytes
        self._stride = 1
        self._seen = 0
        try:
            self._file = self._open()
        except OSError as error:
            raise self._failed(error) from None

    def append(self, sample: Sample) -> None:
        """Write the line of a sample, if it is its turn.

        Raises:
            RingtuneError: It cannot be written, for example because the disk is full.
        """
        self._seen += 1
        if (self._seen - 1) % self._stride:
            return
        line = orjson.dumps(sample, option=orjson.OPT_APPEND_NEWLINE)
        try:
            if self._size_bytes + len(line) > self._limit_bytes:
                self._thin()
            self._file.write(line)
        except OSError as error:
            raise self._failed(error) from None
        self._size_bytes += len(line)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def _open(self) -> FileIO:
        file = open_private(self.path, "ab")
        self._size_bytes = file.tell()
        return file

    def _thin(self) -> None:
        """Drop every second line; a torn one, left by a full disk, goes too."""
        lines = [line for line in self.path.read_bytes().split(b"\n") if line.startswith(b"{") and line.endswith(b"}")]
        part = self.path.with_name(f".{self.path.name}.part")
        part.touch(mode=0o600)
        part.write_bytes(b"".join(line + b"\n" for line in lines[::2]))
        os.replace(part, self.path)
        self._file.close()
        self._file = self._open()
        self._stride *= 2
        self._seen = 1

    def _failed(self, error: OSError) -> RingtuneError:
        return RingtuneError(f"{self.path}: cannot be written: {error.strerror or error}")
