"""Reading one file, whatever it is: a part's records, or JSON of any tool."""

from __future__ import annotations

import os
from pathlib import Path

from ringtune.errors import TraceIoError
from ringtune.timeline.reading.interpretation import read_events
from ringtune.timeline.reading.part_reader import is_part, read_part
from ringtune.timeline.spans import Columns, Trace


def read(path: str | os.PathLike[str], room: Columns | None = None) -> Trace:
    """Read one trace file: a part, a merged file, Horovod's timeline or any Chrome trace; plain or gzip.

    Damaged and torn files are read as far as they go; `PartInfo.truncated` and `Trace.skipped` tell what was lost.

    Args:
        path: The file.
        room: Columns for the spans of a part, where its end says how many these are.

    Raises:
        TraceIoError: The file cannot be read or is no trace; the message says what to do.
    """
    file = Path(path)
    try:
        records = is_part(file)
    except OSError as error:
        raise TraceIoError(f"{file}: cannot be read: {error.strerror or error}") from error
    return read_part(file, room) if records else read_events(file)
