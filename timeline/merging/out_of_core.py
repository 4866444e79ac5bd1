"""Out-of-core merging, common to DuckDB and native code: parallel reading, clocks, head and end of the merged file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson

from ringtune.errors import TraceIoError
from ringtune.output_file import output_file
from ringtune.timeline.merging.clocks import HostOffset, align, placements
from ringtune.timeline.merging.merged_file import about_document, head_events, instant_events
from ringtune.timeline.merging.parts import in_order, missing_ranks, one_part_a_rank
from ringtune.timeline.merging.writer import event_lines, packing
from ringtune.timeline.spans import COLUMN_TYPES, SpanTable, Trace, empty_table
from ringtune.timeline.vocabulary import Stage

Loaded = TypeVar("Loaded")


def load_all(
    paths: Sequence[Path], load: Callable[[int, Path], Loaded | Trace]
) -> tuple[list[Loaded], list[Trace], dict[Path, str]]:
    """Read files, as many at once as there are cores.

    Args:
        paths: The files.
        load: Reads the file of that number: as a part, or whole if it is none; raises TraceIoError.

    Returns:
        The parts; traces that are no ringtune parts; and by path why a file could not be read.
    """
    parts: list[Loaded] = []
    foreign: list[Trace] = []
    problems: dict[Path, str] = {}

    def attempt(numbered: tuple[int, Path]) -> Loaded | Trace | TraceIoError:
        try:
            return load(*numbered)
        except TraceIoError as error:
            return error

    with ThreadPoolExecutor(max_workers=max(1, min(len(paths), os.cpu_count() or 1))) as pool:
        for path, found in zip(paths, pool.map(attempt, enumerate(paths)), strict=True):
            if isinstance(found, TraceIoError):
                problems[path] = str(found)
            elif isinstance(found, Trace):
                foreign.append(found)
            else:
                parts.append(found)
    return parts, foreign, problems


def with_first(about: Trace, first_ns: int | None) -> Trace:
    """Return a trace without spans but for one at its first moment, which says where it begins."""
    if first_ns is None:
        return replace(about, spans=empty_table())
    columns: dict[str, Any] = {name: np.zeros(1, dtype=kind) for name, kind in COLUMN_TYPES.items()}
    columns["begin_ns"] = columns["end_ns"] = np.array([first_ns], dtype=np.int64)
    return replace(about, spans=SpanTable(**columns, names=("",)))


@dataclass(frozen=True)
class Joined:
    """A job as one trace without its spans, and how each of its traces, in order, comes onto its clock.

    A trace's moment t is the job's ``t + offset(t) - trace.origin_ns``.
    """

    trace: Trace
    ordered: tuple[Trace, ...]
    offsets: tuple[HostOffset, ...]


def on_one_clock(abouts: Sequence[Trace], last_ns: Callable[[Trace], int | None]) -> Joined:
    """Bring traces of one job, each with at most its first span, onto rank 0's clock.

    Args:
        abouts: The traces, in any order.
        last_ns: Gives the end of a trace's last span; None where it has none.

    Raises:
        RingtuneError: The parts are of different jobs, or a rank comes twice.
    """
    ordered = in_order(abouts)
    offsets = placements(ordered)
    aligned = [align(trace, offset, last_ns(trace)) for trace, offset in zip(ordered, offsets, strict=True)]
    instants = sorted(
        (instant for trace in aligned for instant in trace.instants), key=lambda found: (found.at_ns, found.rank)
    )
    firsts = [int(trace.spans.begin_ns[0]) for trace in aligned if len(trace.spans)]
    origin = min(firsts + [instant.at_ns for instant in instants], default=0)
    trace = Trace(
        spans=empty_table(),
        instants=tuple(replace(instant, at_ns=instant.at_ns - origin) for instant in instants),
        parts=one_part_a_rank(aligned),
        source="merged",
        clock="job",
        origin_ns=origin,
        skipped=sum(trace.skipped for trace in aligned),
    )
    return Joined(trace, tuple(ordered), tuple(offsets))


@contextmanager
def plain_target(output: Path) -> Iterator[Path]:
    """A file to write plainly; it becomes the output, packed if that is asked for, when the block ends well."""
    with output_file(output, TraceIoError) as part:
        if output.suffix != ".gz":
            yield part
            return
        plain = part.with_name(f"{part.name}.plain")
        try:
            yield plain
            with open(plain, "rb") as whole, open(part, "wb") as file, packing(file) as packed:
                shutil.copyfileobj(whole, packed, 1 << 20)
        finally:
            plain.unlink(missing_ok=True)


def frame(trace: Trace, problems: Sequence[str], used: Sequence[tuple[int, Stage]]) -> tuple[bytes, bytes]:
    """Return what stands before the spans and after them; the last event has no comma behind it."""
    first = [*head_events(trace, used), *instant_events(trace)]
    about = about_document(trace, problems, missing_ranks(trace))
    head = b'{"displayTimeUnit":"ms","traceEvents":[\n' + event_lines(first[1:]) + (b",\n" if len(first) > 1 else b"")
    return head, event_lines(first[:1]) + b'\n],"otherData":' + orjson.dumps({"ringtune": about}) + b"}\n"
