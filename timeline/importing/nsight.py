"""SQLite exports of Nsight Systems (``nsys export --type sqlite``): kernels, and the ranges that programs name (NVTX).

A process on a device is a rank. Kernels of NCCL are its communication; where only NCCL's ranges were recorded, these
are. A range such as ``step 12`` is a step, and a kernel belongs to the step in which it was launched.
Source: Nsight Systems User Guide, SQLite Schema Reference.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ringtune.errors import TraceIoError
from ringtune.timeline.importing.devices import Span, device_trace
from ringtune.timeline.spans import UNKNOWN, Trace
from ringtune.timeline.vocabulary import STEP_NAME, Stage

_STEP = re.compile(
    r"^(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?|ProfilerStep#)[^\w]{0,3}(\d{1,15})$", re.IGNORECASE
)
_NCCL_KERNEL = re.compile(r"^nccl(?:Dev)?Kernel")
_NCCL_CALL = re.compile(r"^nccl[A-Z]\w+$")
_PUSH_POP, _START_END = 59, 60
"""Types of NVTX events that are ranges."""
_PROCESS_BITS = 24
"""A thread's number over all processes is its process's and so many bits."""


def is_nsight(file: Path, head: bytes) -> bool:
    """Whether a file that begins so is a database of SQLite."""
    return head.startswith(b"SQLite format 3\0")


def read_nsight(file: Path) -> list[Trace]:
    """Read one report: a trace for every process on every device.

    Raises:
        TraceIoError: It is no export of Nsight Systems, holds no kernels and no ranges, or is damaged.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro&immutable=1", uri=True)) as database:
            return _traces(file, database)
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise TraceIoError(
            f"{file}: no export of Nsight Systems, or a damaged one ({error}); make it with `nsys export --type sqlite`"
        ) from None


def _traces(file: Path, database: sqlite3.Connection) -> list[Trace]:
    tables = {name for (name,) in database.execute("select name from sqlite_master where type in ('table', 'view')")}
    kernels = _rows(database, tables, "CUPTI_ACTIVITY_KIND_KERNEL", (
        "select globalPid, deviceId, start, end, correlationId, (select value from StringIds where id = shortName)"
        " from CUPTI_ACTIVITY_KIND_KERNEL order by start"
    ))  # fmt: skip
    ranges = _rows(database, tables, "NVTX_EVENTS", (
        "select globalTid, start, end, coalesce(text, (select value from StringIds where id = textId))"
        f" from NVTX_EVENTS where eventType in ({_PUSH_POP}, {_START_END}) and end is not null order by start"
    ))  # fmt: skip
    launches = _rows(database, tables, "CUPTI_ACTIVITY_KIND_RUNTIME", (
        "select globalTid, correlationId, start from CUPTI_ACTIVITY_KIND_RUNTIME"
    ))  # fmt: skip
    if not kernels and not ranges:
        raise TraceIoError(f"{file}: neither kernels nor NVTX ranges in it; record with --trace=cuda,nvtx")
    clock = _rows(database, tables, "TARGET_INFO_SESSION_START_TIME", (
        "select utcEpochNs from TARGET_INFO_SESSION_START_TIME"
    ))  # fmt: skip
    named = _rows(database, tables, "TARGET_INFO_SYSTEM_ENV", (
        "select value from TARGET_INFO_SYSTEM_ENV where name = 'Hostname'"
    ))  # fmt: skip
    launched = {(thread >> _PROCESS_BITS, call): start for thread, call, start in launches}
    owners = sorted({(device, process) for process, device, *_ in kernels})
    owners = owners or [(0, process) for process in sorted({_process_of(thread) for thread, *_ in ranges})]
    traces = []
    for device, process in owners:
        own = [row[2:] for row in kernels if row[:2] == (process, device)]
        here = [row[1:] for row in ranges if _process_of(row[0]) == process]
        spans = _spans(
            own, here, {call: at for (owner, call), at in launched.items() if owner == process >> _PROCESS_BITS}
        )
        host, unix_ns = str(named[0][0]) if named else "", int(clock[0][0]) if clock else 1
        traces.append(device_trace(file, spans, host=host, unix_ns=unix_ns))
    return traces


def _rows(database: sqlite3.Connection, tables: set[str], table: str, query: str) -> list[tuple[Any, ...]]:
    """Rows of a table that an export has only where something of the kind was recorded."""
    return database.execute(query).fetchall() if table in tables else []


def _process_of(thread: int) -> int:
    return thread >> _PROCESS_BITS << _PROCESS_BITS


def _spans(
    kernels: Sequence[tuple[Any, ...]], ranges: Sequence[tuple[Any, ...]], launched: dict[int, int]
) -> list[Span]:
    """Kernels and ranges of one process on one device, in µs."""
    steps = [(start, end, int(found[1])) for start, end, text in ranges if (found := _STEP.match(text or ""))]
    begins = np.array([start for start, *_ in steps], dtype=np.int64)
    spans: list[Span] = [
        (STEP_NAME, Stage.STEP, start / 1000, end / 1000, {"step": number}) for start, end, number in steps
    ]
    communicates = False
    for start, end, call, name in kernels:
        inside = bool(_NCCL_KERNEL.match(name or ""))
        communicates |= inside
        at = launched.get(call, start)
        place = int(np.searchsorted(begins, at, side="right")) - 1
        number = steps[place][2] if place >= 0 and at < steps[place][1] else UNKNOWN
        stage = Stage.COMMUNICATE if inside else Stage.KERNEL
        spans.append((name or "", stage, start / 1000, end / 1000, {"step": number}))
    for start, end, text in ranges:
        if not text or _STEP.match(text):
            continue
        called = bool(_NCCL_CALL.match(text))
        stage = Stage.RANGE if not called else Stage.OTHER if communicates else Stage.COMMUNICATE
        spans.append((text, stage, start / 1000, end / 1000, {}))
    return spans
