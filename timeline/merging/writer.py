"""Writing trace files: events to JSON bytes by blocks, whole files at once or not at all.

Every event stands on a line of its own, so files can be searched with grep and read back block by block.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from ringtune.errors import TraceIoError
from ringtune.output_file import output_file
from ringtune.timeline.spans import Instant, SpanTable
from ringtune.timeline.vocabulary import BUS_NAME, Stage

Event = dict[str, Any]

BLOCK_EVENTS = 16384
"""Events turned into JSON at once: large enough to be quick, small enough for the cache."""

GZIP_LEVEL = 4


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open an output file (see `ringtune.output_file`); gzip when the name ends in ``.gz``.

    Raises:
        TraceIoError: It cannot be written; nothing is left behind.
    """
    with output_file(path, TraceIoError) as part, open(part, "wb") as plain:
        if path.suffix == ".gz":
            with packing(plain) as packed:
                yield packed
        else:
            yield plain


def packing(plain: BinaryIO) -> BinaryIO:
    """Return a file whose content is packed into `plain`, without name and time: equal traces give equal files."""
    return cast(BinaryIO, gzip.GzipFile("", "wb", GZIP_LEVEL, plain, mtime=0))


def event_lines(events: Sequence[Event]) -> bytes:
    """Return events as JSON, one a line, separated by commas, no comma at the end; empty for no events."""
    packed = orjson.dumps(events, default=str)
    # Quotes inside strings are escaped, so this sequence can only stand between two objects.
    return packed[1:-1].replace(b'},{"name"', b'},\n{"name"')


def metadata(name: str, pid: int, tid: int, /, **args: Any) -> Event:
    """Return a metadata event."""
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def process_events(rank: int, label: str, tracks: Mapping[int, str]) -> list[Event]:
    """Return the metadata that names and sorts a rank's process and its tracks, which are given by their numbers."""
    events = [metadata("process_name", rank, 0, name=label), metadata("process_sort_index", rank, 0, sort_index=rank)]
    for track, name in sorted(tracks.items()):
        events.append(metadata("thread_name", rank, track, name=name))
        events.append(metadata("thread_sort_index", rank, track, sort_index=track))
    return events


Row = tuple[int, int, int, int, int, int]
"""Codes and numbers of a span's arguments: tensor, bytes, batch, step, knobs_version, facts."""


def span_args(row: Row, table: SpanTable) -> Event:
    """Return a span's arguments; what is not known is left out."""
    tensor, size, batch, step, knobs_version, facts = row
    args: Event = {}
    if tensor:
        args["tensor"] = table.tensors[tensor]
    args["bytes"] = size
    if facts:
        args |= orjson.loads("{" + table.fact_texts[facts] + "}")
    if batch:
        args["batch"] = batch
    if step >= 0:
        args["step"] = step
    args["knobs_version"] = knobs_version
    return args


def cycle_args(row: Row) -> Event:
    """Return a cycle mark's arguments from the same row; it has neither tensor nor bytes."""
    _, _, _, step, knobs_version, _ = row
    return {"step": step, "knobs_version": knobs_version} if step >= 0 else {"knobs_version": knobs_version}


def counter_args(name: str, row: Row) -> Event:
    """Return a counter's values from the same row."""
    _, size, operations, *_ = row
    return {"bytes_per_s": size} if name == BUS_NAME else {"bytes": size, "operations": operations}


def argument_rows(table: SpanTable) -> Iterator[Row]:
    """Rows for `span_args`, span by span."""
    columns = (table.tensor, table.bytes, table.batch, table.step, table.knobs_version, table.facts)
    return zip(*(column.tolist() for column in columns), strict=True)


def instant_event(instant: Instant, scope: str, origin_ns: int = 0) -> Event:
    """Return a rare instant as an event; scope is ``p`` (process) or ``g`` (global)."""
    return {
        "name": instant.name,
        "cat": instant.category,
        "ph": "i",
        "s": scope,
        "pid": instant.rank,
        "tid": int(Stage.CYCLE),
        "ts": (instant.at_ns - origin_ns) / 1000,
        "args": dict(instant.args),
    }
