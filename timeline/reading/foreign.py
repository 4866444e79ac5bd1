"""Traces of other tools: Horovod's own timeline, PyTorch's profiler (Kineto), any Chrome trace.

What they say is brought into ringtune's words as far as they say it: collectives become ``communicate``, work of a
device ``kernel``, profiler steps ``step``; the rest stays ``other``. Each rank's `PartInfo` keeps how its clock stands
to the wall clock (``unix_ns`` was ``monotonic_ns`` on the trace's clock; both 0 where the trace does not say), so that
traces of several ranks and tools can be joined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ringtune.timeline.reading.collect import Collector
from ringtune.timeline.reading.kineto import GPU_PREFIX, PROFILER_STEP, step_number
from ringtune.timeline.reading.stream import EventStream
from ringtune.timeline.spans import UNKNOWN, Instant, Ints, Mask, PartInfo, SpanTable, Trace
from ringtune.timeline.vocabulary import (
    COPY_IN_NAME,
    COPY_OUT_NAME,
    FOREIGN_STAGES,
    NEGOTIATE_PREFIX,
    QUEUE_NAME,
    Stage,
)

_COLLECTIVE = re.compile(r"^(?:RING|GLOO|NCCL|MPI|CCL)_[A-Z]|^nccl(?:Dev)?Kernel|^(?:nccl|gloo|mpi|ucc|ringtune):")
_DEVICE_COLLECTIVE = re.compile(r"^nccl(?:Dev)?Kernel")
_RANK_LABEL = re.compile(r"^rank (\d{1,9})\b")
RANK_IN_NAME = re.compile(r"rank[-_ ]?(\d{1,9})(?!\d)", re.IGNORECASE)
"""How a file's name says the rank that wrote it."""

EPOCH_NS = 10**18
"""Clocks of other tools beyond this (2001 in nanoseconds since 1970) count from 1970."""


def horovod_trace(file: Path, stream: EventStream, collector: Collector) -> Trace:
    """Horovod's timeline: what rank 0 saw."""
    unix_ns = collector.horovod_start_ns
    part = PartInfo(rank=0, truncated=stream.truncated, path=file, unix_ns=unix_ns, monotonic_ns=0)
    return Trace(by_name(collector.spans.table()), tuple(collector.instants), (part,), "horovod")


def foreign_trace(file: Path, stream: EventStream, collector: Collector) -> Trace:
    """A trace of another tool: processes become ranks (their number in ``rank N`` labels, else their order)."""
    spans, instants = collector.spans.table(), tuple(collector.instants)
    pids = sorted(set(np.unique(spans.rank).tolist()) | {instant.rank for instant in instants})
    ranks = _ranks(file, stream, collector, pids)
    if len(spans):
        places = np.searchsorted(np.array(pids), spans.rank)
        mapped = np.array([ranks[pid] for pid in pids], dtype=np.int32)
        spans = replace(spans, rank=mapped[places])
    instants = tuple(replace(instant, rank=ranks[instant.rank]) for instant in instants)
    spans = with_threads(with_steps(by_name(spans)), collector.thread_names)
    unix_ns, local_ns = _wall_clock(stream.document, spans, instants)
    host = str(stream.document.get("hostname", stream.document.get("host_name", "")))
    common = PartInfo(
        rank=0, size=_world(stream.document), host=host, truncated=stream.truncated, path=file, unix_ns=unix_ns,
        monotonic_ns=local_ns, rank_known=not stream.kineto or _said_rank(file, stream) is not None,
    )  # fmt: skip
    parts = tuple(replace(common, rank=rank) for rank in sorted(set(ranks.values())))
    return Trace(spans, instants, parts, "chrome")


def _said_rank(file: Path, stream: EventStream) -> int | None:
    """The one rank of a file as PyTorch's profiler says it, or else the file's name; None where neither does."""
    world = stream.document.get("distributedInfo")
    rank = world.get("rank") if isinstance(world, dict) else None
    if isinstance(rank, int) and 0 <= rank < 2**31:
        return rank
    # Without torch.distributed it does not know its rank.
    named = RANK_IN_NAME.search(file.name) if stream.kineto else None
    return int(named.group(1)) if named else None


def _ranks(file: Path, stream: EventStream, collector: Collector, pids: list[int]) -> dict[int, int]:
    rank = _said_rank(file, stream)
    if rank is not None or stream.kineto:
        return dict.fromkeys(pids, rank or 0)  # one file holds one rank
    labelled = {pid: _RANK_LABEL.match(collector.process_names.get(pid, "")) for pid in pids}
    found = {pid: int(label.group(1)) for pid, label in labelled.items() if label}
    return found if len(found) == len(pids) else {pid: order for order, pid in enumerate(pids)}


def _world(document: Mapping[str, Any]) -> int:
    """Ranks of the job as PyTorch's profiler says; 1 where it does not."""
    about = document.get("distributedInfo")
    size = about.get("world_size") if isinstance(about, dict) else None
    return size if isinstance(size, int) and 0 < size < 2**31 else 1


def _wall_clock(document: Mapping[str, Any], spans: SpanTable, instants: tuple[Instant, ...]) -> tuple[int, int]:
    """(nanoseconds since 1970, the trace's clock at that moment); zeros when the trace does not say."""
    base = document.get("baseTimeNanoseconds")
    if isinstance(base, int) and 0 < base < 2**62:
        return base, 0
    if not len(spans) and not instants:
        return 0, 0
    first = int(spans.begin_ns.min()) if len(spans) else min(instant.at_ns for instant in instants)
    return (first, first) if first > EPOCH_NS else (0, 0)


def by_name(spans: SpanTable) -> SpanTable:
    """Place spans without a stage by their names, as far as these are well known."""
    stage_of_name = np.array([_stage_of(name) for name in spans.names] or [Stage.OTHER], dtype=np.uint8)
    steps = [step_number(name) for name in spans.names]
    step_of_name = np.array(steps or [UNKNOWN], dtype=np.int64)
    unplaced = spans.in_stage(Stage.OTHER)
    spans = replace(
        spans,
        stage=np.where(unplaced, stage_of_name[spans.name], spans.stage).astype(np.uint8),
        step=np.where(unplaced & (spans.step == UNKNOWN), step_of_name[spans.name], spans.step),
    )
    return _on_device(spans)


def _on_device(spans: SpanTable) -> SpanTable:
    """Where a rank's device ran collectives, those are its communication, and not the calls that launched them."""
    named = np.array([bool(_DEVICE_COLLECTIVE.match(name)) for name in spans.names] or [False], dtype=np.bool_)
    device = named[spans.name] & spans.in_stage(Stage.KERNEL)
    if not device.any():
        return spans
    launched = spans.in_stage(Stage.COMMUNICATE) & np.isin(spans.rank, np.unique(spans.rank[device]))
    stage = np.where(launched, Stage.OTHER, np.where(device, Stage.COMMUNICATE, spans.stage))
    return replace(spans, stage=stage.astype(np.uint8))


def with_steps(spans: SpanTable) -> SpanTable:
    """Give spans the profiler step in which they began; those of a device the step as the device saw it."""
    step = spans.step.copy()
    named = [name.removeprefix(GPU_PREFIX) for name in spans.names]
    marks_device = np.array(
        [name != full and bool(PROFILER_STEP.match(name)) for name, full in zip(named, spans.names, strict=True)]
        or [False],
        dtype=np.bool_,
    )[spans.name]
    for rank in np.unique(spans.rank).tolist():
        mine = spans.rank == rank
        host_steps = mine & spans.in_stage(Stage.STEP)
        _fill(step, spans, mine & ~host_steps & ~marks_device & (step == UNKNOWN), host_steps)
        device_steps = mine & marks_device
        if device_steps.any():
            numbers = np.array([step_number(name) for name in named], dtype=np.int64)
            step[device_steps] = numbers[spans.name[device_steps]]
            on_device = mine & spans.in_stage(Stage.KERNEL, Stage.COMMUNICATE)
            _fill(step, replace(spans, step=step), on_device, device_steps)
    return replace(spans, step=step)


def with_threads(spans: SpanTable, names: Mapping[str, str]) -> SpanTable:
    """Name the threads and streams of spans of other tools; those that ringtune would record have none."""
    facts: list[dict[str, Any]] = [orjson.loads(f"{{{text}}}") for text in spans.fact_texts]
    if not any("thread" in one for one in facts):
        return spans
    named, plain = list[str](), list[str]()
    for one in facts:
        thread = one.pop("thread", "")
        plain.append(_inside(one))
        called = names.get(thread, f"thread {thread.rpartition('/')[2]}")
        named.append(_inside({**one, "thread": called}) if thread else plain[-1])
    theirs = spans.in_stage(*FOREIGN_STAGES)
    code = np.where(theirs, spans.facts, spans.facts + len(named)).astype(np.int32)
    return replace(spans, facts=code, fact_texts=(*named, *plain))


def _inside(facts: Mapping[str, Any]) -> str:
    return orjson.dumps(facts).decode()[1:-1]


def _fill(step: Ints, spans: SpanTable, wanted: Mask, marks: Mask) -> None:
    """Set ``step`` of the wanted spans that begin inside one of the marks."""
    if not marks.any() or not wanted.any():
        return
    order = np.argsort(spans.begin_ns[marks], kind="stable")
    begin, end, number = (column[marks][order] for column in (spans.begin_ns, spans.end_ns, spans.step))
    moments = spans.begin_ns[wanted]
    place = np.searchsorted(begin, moments, side="right") - 1
    inside = (place >= 0) & (moments < end[np.maximum(place, 0)])
    step[wanted] = np.where(inside, number[np.maximum(place, 0)], step[wanted])


def _stage_of(name: str) -> Stage:
    if name.startswith(NEGOTIATE_PREFIX):
        return Stage.NEGOTIATE
    if _COLLECTIVE.match(name):
        return Stage.COMMUNICATE
    if PROFILER_STEP.match(name):
        return Stage.STEP
    known = {QUEUE_NAME: Stage.QUEUE, COPY_IN_NAME: Stage.COPY_IN, COPY_OUT_NAME: Stage.COPY_OUT}
    return known.get(name, Stage.OTHER)
