"""Reading a trace file of any kind into a `Trace`: a part, a merged file, Horovod's timeline, any Chrome trace."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ringtune.errors import TraceIoError
from ringtune.timeline.collect import Collector
from ringtune.timeline.spans import UNKNOWN, Instant, PartInfo, SpanTable, Trace
from ringtune.timeline.stream import EventStream
from ringtune.timeline.vocabulary import COPY_IN_NAME, COPY_OUT_NAME, FORMAT, NEGOTIATE_PREFIX, QUEUE_NAME, Stage

_COLLECTIVE = re.compile(r"^(?:RING|GLOO|NCCL|MPI|CCL)_[A-Z]|^nccl(?:Dev)?Kernel|^(?:nccl|gloo|mpi):")
_PROFILER_STEP = re.compile(r"^ProfilerStep#(\d+)$")
_RANK_LABEL = re.compile(r"^rank (\d{1,9})\b")


def read(path: str | os.PathLike[str]) -> Trace:
    """Read one trace file, plain or gzip. A torn tail is left out and reported as ``truncated``.

    Raises:
        TraceIoError: The file cannot be read or is no trace; the message says what to do.
    """
    file = Path(path)
    stream, collector = EventStream(file), Collector()
    count = 0
    with _collection_paused():
        for block in stream.blocks():
            count += len(block)
            collector.add(block)
    collector.finish()
    skipped = collector.skipped + stream.skipped
    if count + stream.skipped > 0 and skipped == count + stream.skipped:
        raise TraceIoError(
            f"{file}: no trace: none of its {skipped} entries is a trace event; give a Chrome trace or a run folder"
        )
    trace = _interpret(file, stream, collector)
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


def _interpret(file: Path, stream: EventStream, collector: Collector) -> Trace:
    spans, instants = collector.spans.table(), tuple(collector.instants)
    about = _about_merged(file, stream.document)
    if about is not None:
        parts = tuple(sorted((_merged_part(entry, about) for entry in about["parts"]), key=lambda part: part.rank))
        if stream.truncated:
            parts = tuple(replace(part, truncated=True) for part in parts)
        return Trace(spans, instants, parts, "merged", "job", origin_ns=_number(about.get("origin_ns")))
    if collector.headers:
        parts = tuple(_part(file, pid, stream, collector) for pid in collector.headers)
        return Trace(spans, instants, parts, "part")
    if collector.horovod:
        part = PartInfo(rank=0, truncated=stream.truncated, path=file)
        return Trace(_by_name(spans), instants, (part,), "horovod")
    return _foreign(file, stream, collector, (spans, instants))


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
    )


def _part(file: Path, pid: Any, stream: EventStream, collector: Collector) -> PartInfo:
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
        truncated=stream.truncated or end is None,
        unix_ns=_number(about.get("unix_ns")),
        monotonic_ns=_number(about.get("monotonic_ns")),
        path=file,
    )


def _number(value: object, default: int = 0) -> int:
    return int(value) if isinstance(value, (int, float)) and abs(value) < 2**63 else default


def _foreign(
    file: Path, stream: EventStream, collector: Collector, found: tuple[SpanTable, tuple[Instant, ...]]
) -> Trace:
    """A trace of another tool: processes become ranks (their number in ``rank N`` labels, else their order)."""
    spans, instants = found
    pids = sorted(set(np.unique(spans.rank).tolist()) | {instant.rank for instant in instants})
    labelled = {pid: _RANK_LABEL.match(collector.process_names.get(pid, "")) for pid in pids}
    ranks = {pid: int(label.group(1)) if label else None for pid, label in labelled.items()}
    world = stream.document.get("distributedInfo")
    if isinstance(world, dict) and isinstance(world.get("rank"), int):
        ranks = dict.fromkeys(pids, world["rank"])  # PyTorch's profiler: one file holds one rank
    elif None in ranks.values():
        ranks = {pid: order for order, pid in enumerate(pids)}
    if len(spans):
        places = np.searchsorted(np.array(pids), spans.rank)
        mapped = np.array([ranks[pid] for pid in pids], dtype=np.int32)
        spans = replace(spans, rank=mapped[places])
    instants = tuple(replace(instant, rank=ranks[instant.rank] or 0) for instant in instants)
    numbers = sorted({rank for rank in ranks.values() if rank is not None})
    parts = tuple(PartInfo(rank=rank, truncated=stream.truncated, path=file) for rank in numbers)
    return Trace(_by_name(spans), instants, parts, "chrome")


def _by_name(spans: SpanTable) -> SpanTable:
    """Place spans without a stage by their names, as far as these are well known."""
    stage_of_name = np.array([_stage_of(name) for name in spans.names] or [Stage.OTHER], dtype=np.uint8)
    steps = [_PROFILER_STEP.match(name) for name in spans.names]
    step_of_name = np.array([int(step.group(1)) if step else UNKNOWN for step in steps] or [UNKNOWN], dtype=np.int64)
    unplaced = spans.stage == Stage.OTHER
    return replace(
        spans,
        stage=np.where(unplaced, stage_of_name[spans.name], spans.stage).astype(np.uint8),
        step=np.where(unplaced & (spans.step == UNKNOWN), step_of_name[spans.name], spans.step),
    )


def _stage_of(name: str) -> Stage:
    if name.startswith(NEGOTIATE_PREFIX):
        return Stage.NEGOTIATE
    if _COLLECTIVE.match(name):
        return Stage.COMMUNICATE
    if _PROFILER_STEP.match(name):
        return Stage.STEP
    known = {QUEUE_NAME: Stage.QUEUE, COPY_IN_NAME: Stage.COPY_IN, COPY_OUT_NAME: Stage.COPY_OUT}
    return known.get(name, Stage.OTHER)
