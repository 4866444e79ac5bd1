"""What the events of one file mean together: which kind of trace they are, and whose part."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ringtune import layout
from ringtune.errors import TraceIoError
from ringtune.timeline.reading.collect import Collector
from ringtune.timeline.reading.foreign import foreign_trace, horovod_trace
from ringtune.timeline.reading.stream import EventStream
from ringtune.timeline.spans import PartInfo, SpanTable, Trace
from ringtune.timeline.vocabulary import FORMAT, STEP_NAME, STEP_PREFIX, Stage


def read_events(file: Path) -> Trace:
    """Read one trace file event by event, whatever its size; damaged files are read as far as they go.

    Raises:
        TraceIoError: The file cannot be read or is no trace; the message says what to do.
    """
    stream, collector = EventStream(file), Collector()
    count = 0
    with _collection_paused():
        for block in stream.blocks():
            count += len(block)
            collector.kineto = stream.kineto
            collector.add(block)
    collector.finish()
    skipped = collector.skipped + stream.skipped
    if count + stream.skipped > 0 and skipped == count + stream.skipped:
        raise TraceIoError(
            f"{file}: no trace: none of its {skipped} entries is a trace event; give a Chrome trace or a run folder"
        )
    trace = interpret(file, stream, collector)
    if stream.truncated and not collector.headers and file.match(layout.RANK_FILES) and not len(trace.spans):
        raise TraceIoError(
            f"{file}: this rank's part is torn inside its header (the rank was killed, or the disk was full), so "
            "nothing of it can be read"
        )
    return replace(trace, skipped=skipped, path=file)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Parsed events form no cycles: looking for some among millions of them would cost a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def interpret(file: Path, stream: EventStream, collector: Collector) -> Trace:
    """Return what was collected from a file as the kind of trace it is.

    Raises:
        TraceIoError: The file contradicts itself, or a newer ringtune wrote it.
    """
    spans, instants = _with_plain_steps(collector.spans.table()), tuple(collector.instants)
    about = _about_merged(file, stream.document)
    if about is not None:
        parts = tuple(sorted((_merged_part(entry, about) for entry in about["parts"]), key=lambda part: part.rank))
        if stream.truncated:
            parts = tuple(replace(part, truncated=True) for part in parts)
        return Trace(spans, instants, parts, "merged", "job", origin_ns=_number(about.get("origin_ns")))
    if collector.headers:
        parts = tuple(part_info(file, pid, collector, truncated=stream.truncated) for pid in collector.headers)
        return Trace(spans, instants, parts, "part")
    if collector.horovod:
        return horovod_trace(file, stream, collector)
    return foreign_trace(file, stream, collector)


def _with_plain_steps(spans: SpanTable) -> SpanTable:
    """Give ringtune's steps, whose names in a file hold their numbers, the one name that they have in tables."""
    numbered = [name.startswith(STEP_PREFIX) and name.removeprefix(STEP_PREFIX).isdecimal() for name in spans.names]
    if not any(numbered):
        return spans
    names = spans.names if STEP_NAME in spans.names else (*spans.names, STEP_NAME)
    steps = spans.in_stage(Stage.STEP) & np.array(numbered)[spans.name]
    return replace(spans, name=np.where(steps, names.index(STEP_NAME), spans.name).astype(np.int32), names=names)


def _about_merged(file: Path, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a merged file says about itself; None for other files.

    Raises:
        TraceIoError: A newer ringtune wrote it, or it contradicts itself.
    """
    other = document.get("otherData")
    about = other.get("ringtune") if isinstance(other, dict) else None
    if not isinstance(about, dict):
        return None
    _check_format(file, about)
    parts = about.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise TraceIoError(f"{file}: otherData.ringtune has no list of parts; merge the run's parts again")
    return about


def _check_format(file: Path, about: Mapping[str, Any]) -> None:
    version = about.get("format", FORMAT)
    if version != FORMAT:
        raise TraceIoError(f"{file}: trace format {version!r}, this ringtune reads {FORMAT}; update ringtune")


def _merged_part(entry: Mapping[str, Any], about: Mapping[str, Any]) -> PartInfo:
    error, recorded = entry.get("error_ns"), entry.get("recorded")
    return PartInfo(
        rank=_number(entry.get("rank")),
        size=_number(about.get("size"), 1),
        host=str(entry.get("host", "")),
        job=str(about.get("job", "")),
        recorded=None if recorded is None else _number(recorded),
        dropped=_number(entry.get("dropped")),
        truncated=bool(entry.get("truncated", False)),
        offset_ns=_number(entry.get("offset_ns")),
        error_ns=None if error is None else _number(error),
        drift_ppb=None if entry.get("drift_ppb") is None else _number(entry["drift_ppb"]),
    )


def part_info(file: Path, pid: Any, collector: Collector, *, truncated: bool) -> PartInfo:
    """Return what a part says about itself; ``truncated``: the file's tail is damaged.

    Raises:
        TraceIoError: Its header makes no sense, or a newer ringtune wrote it.
    """
    about, end = collector.headers[pid], collector.ends.get(pid)
    _check_format(file, about)
    rank = about.get("rank")
    if not isinstance(rank, int) or rank < 0 or rank >= 2**31:
        raise TraceIoError(f"{file}: its header names rank {rank!r}; this part is damaged, leave it out")
    return PartInfo(
        rank=rank,
        size=_number(about.get("size"), 1),
        host=str(about.get("host", "")),
        job=str(about.get("job", "")),
        recorded=None if end is None else _number(end.get("recorded")),
        dropped=0 if end is None else _number(end.get("dropped")),
        truncated=truncated or end is None,
        unix_ns=_number(about.get("unix_ns")),
        monotonic_ns=_number(about.get("monotonic_ns")),
        path=file,
        file=_number(about.get("file")),
    )


def _number(value: object, default: int = 0) -> int:
    return int(value) if isinstance(value, (int, float)) and abs(value) < 2**63 else default
