"""Reading a trace file of any kind into a `Trace`: a part, a merged file, Horovod's timeline, any Chrome trace."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ringtune.timeline.reading import native_lines
from ringtune.timeline.reading.bulk_read import read_in_bulk
from ringtune.timeline.reading.interpretation import read_events
from ringtune.timeline.reading.native_read import read_natively
from ringtune.timeline.spans import Trace

BULK_BYTES = 32 << 20
"""From this size on a database pays for starting it, in reading and in merging."""


def read(path: str | os.PathLike[str]) -> Trace:
    """Read one trace file, plain or gzip. A torn tail is left out and reported as ``truncated``.

    Raises:
        TraceIoError: The file cannot be read or is no trace; the message says what to do.
    """
    file = Path(path)
    quick = _read_large(file)
    return read_events(file) if quick is None else replace(quick, path=file)


def _read_large(file: Path) -> Trace | None:
    """Read a large file of ringtune's natively, or with DuckDB, as far as they are installed."""
    try:
        if file.stat().st_size < BULK_BYTES:
            return None
    except OSError:
        return None
    if native_lines.available():
        return read_natively(file)
    if find_spec("duckdb") is None:
        return None
    return read_in_bulk(file)
