"""The tuning journal (JSON lines) and Horovod's autotune log (CSV).

Both are flushed line by line: a reader sees every finished trial while training runs, and a job that is killed loses
none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import orjson

from ringtune.algorithms import SWITCH
from ringtune.errors import RingtuneError
from ringtune.knobs import Knobs
from ringtune.output_file import open_private
from ringtune.tuner.records import Record, ResultRecord, TrialRecord

CSV_HEADER = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
    "cycle_time_ms,tensor_fusion_threshold,score"
)


class Journal:
    """Appends records to files. Single-threaded; owned by the tuner's extension.

    A file that can be written no further, for example because the disk is full, is said once and left as it is: the
    tuning needs none of them.

    Args:
        path: The journal, appended to; None = none is kept. Folders are made.
        csv: Horovod's log; None = none. Its score is the payload in bytes a microsecond of step time.

        csv_goes_on: Whether the log is appended to, as by an elastic job's later sessions; else it is written anew.

    Raises:
        RingtuneError: A file cannot be written.
    """

    def __init__(self, path: Path | None, csv: Path | None = None, *, csv_goes_on: bool = False) -> None:
        self._lines = _open(path, "ab", private=True)
        try:
            self._csv = _open(csv, "ab" if csv_goes_on else "wb")
        except RingtuneError:
            self.close()
            raise
        self._scores: dict[Knobs, float] = {}
        if self._csv is not None and not os.fstat(self._csv.fileno()).st_size:
            self._append("_csv", CSV_HEADER.encode() + b"\n")

    def write(self, records: Iterable[Record]) -> None:
        """Append records, stamped with the present time."""
        for record in records:
            fields = {"event": record.event, "at_unix_ns": time.time_ns(), **record.as_dict()}
            self._append("_lines", orjson.dumps(fields) + b"\n")
            if self._csv is not None:
                self._write_csv(record)

    def _write_csv(self, record: Record) -> None:
        if isinstance(record, TrialRecord):
            # Bytes a microsecond, as Horovod scores; the newest measurement of a setting is its best known one.
            self._scores[record.knobs] = record.bytes / (record.step_ns.median / 1e3)
            self._append("_csv", csv_row(record.knobs, self._scores[record.knobs]))
        elif isinstance(record, ResultRecord):
            self._append("_csv", csv_row(record.knobs, self._scores.get(record.knobs, 0.0)))

    def _append(self, which: str, data: bytes) -> None:
        file: IO[bytes] | None = getattr(self, which)
        if file is None:
            return
        try:
            file.write(data)
        except OSError as error:
            print(
                f"ringtune warning: {file.name} ends here, the tuning goes on: {error.strerror or error}",
                file=sys.stderr,
                flush=True,
            )
            setattr(self, which, None)
            with suppress(OSError):
                file.close()

    def close(self) -> None:
        """Close the files; idempotent."""
        for file in (self._lines, getattr(self, "_csv", None)):
            if file is not None:
                file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def csv_row(knobs: Knobs, score: float) -> bytes:
    """Return a row of Horovod's log: booleans as 0 or 1, milliseconds, MiB; the blank in it is Horovod's."""
    cache, cycle_ms, fusion_mib = int(knobs.cache_capacity > 0), knobs.cycle_time_ns / 1e6, knobs.fusion_bytes / 2**20
    levels = int(SWITCH[knobs.hierarchical] == "on")
    return f"{levels},0,0, {cache},{cycle_ms:g},{fusion_mib:g},{score:g}\n".encode()


def _open(path: Path | None, mode: str, *, private: bool = False) -> IO[bytes] | None:
    if path is None:
        return None
    try:
        if private:
            return open_private(path, mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, mode, buffering=0)
    except OSError as error:
        raise RingtuneError(f"the tuner cannot write {path}: {error.strerror}") from None


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line of the journal; None for a line that is torn or holds none."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
