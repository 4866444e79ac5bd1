"""Finding and reading the timeline of a run: the merged file, or the ranks' parts while the job runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ringtune import layout
from ringtune.dashboard.data.files import Unreadable, listing, open_inside
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.units import count, plain, size
from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.summary import lacking
from ringtune.timeline.merging.merge import join_and_empty
from ringtune.timeline.merging.parts import hold_the_same
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import PartInfo, Trace, empty_table

SIZE_LIMIT_BYTES = 12 * 2**30
"""Largest timeline that is read: about fifty million events."""

LARGE_BYTES = 48 * 2**20
"""From this size on a timeline is prepared once (`ringtune.dashboard.data.timeline.prepare`) and kept on the disk."""


def sources(run: Path) -> list[Path]:
    """Return the files of a run's timeline: the ranks' parts, or the merged file where it alone says everything.

    Only files of the folder itself count. A path that ``run.json`` names is not followed: it may come from anywhere,
    and the parts hold the same.
    """
    merged, folder = layout.timeline_file(run), layout.timeline_parts(run)
    found = [(_PART.fullmatch(path.name), path) for path in listing(run, folder, layout.PART_SUFFIXES)]
    parts = [path for *_, path in sorted((int(name[1]), int(name[2] or 0), path) for name, path in found if name)]
    return [merged] if os.path.lexists(merged) and not hold_the_same(merged, parts) else parts


_PART = re.compile(r"rank-(\d{5,7})(?:\.(\d{1,9}))?\.(?:spans|json)(?:\.gz)?")
"""A rank's file, and its number where the rank wrote several."""


def is_merged(run: Path, files: list[Path]) -> bool:
    """Whether a run's timeline is the merged file."""
    return files == [layout.timeline_file(run)]


def is_large(files: list[Path]) -> bool:
    """Whether a timeline is one to prepare: as JSON of that size is."""
    total = 0
    for path in files:
        with suppress(OSError):
            records, packed = ".spans" in path.suffixes, path.suffix == ".gz"
            total += path.stat().st_size * (5 if records else 1) * ((5 if records else 10) if packed else 1)
    return total >= LARGE_BYTES


def load(run: Path, files: list[Path]) -> TimelineIndex:
    """Return the index of a run's timeline on the job's time, made in memory.

    Raises:
        Unreadable: A file is no trace, leads out of the folder, or all are too large together.
    """
    return TimelineIndex.build(*read_all(run, files))


def read_all(run: Path, files: list[Path]) -> tuple[Trace, tuple[str, ...]]:
    """Return a run's timeline on the job's time, and sentences about what is missing of it.

    Raises:
        Unreadable: See `load`.
    """
    _check(run, files)
    traces, problems = [], []
    for path in files:
        try:
            traces.append(read(path))
        except RingtuneError as error:
            problems.append(plain(str(error).replace(str(run), "").lstrip("/"), 300))
    if files and not traces:
        raise Unreadable(problems[0])
    trace = _joined(traces)
    lacks = lacking(trace)
    # A part that cannot be read is a rank without one, and said already.
    unsaid = replace(lacks, missing=()) if problems else lacks
    return trace, tuple([*problems, *unsaid.sentences(), *remarks(trace.parts)])


def _joined(traces: list[Trace]) -> Trace:
    """Return the traces of one job as one; a merged or foreign file as it is."""
    if not traces:
        return Trace(empty_table(), (), (), "merged", "job")
    if len(traces) == 1 and traces[0].source != "part":
        return traces[0]
    try:
        return join_and_empty(traces)
    except RingtuneError as error:
        raise Unreadable(f"The parts of the timeline cannot be joined: {plain(error, 300)}") from error


def _check(run: Path, files: list[Path]) -> None:
    total = 0
    for path in files:
        descriptor = open_inside(run, path)
        total += os.fstat(descriptor).st_size
        os.close(descriptor)
    if total > SIZE_LIMIT_BYTES:
        raise Unreadable(
            f"The timeline has {size(total)}, more than the {size(SIZE_LIMIT_BYTES)} that can be shown. "
            "Open it in Perfetto, or record fewer steps"
        )


def remarks(parts: Sequence[PartInfo]) -> list[str]:
    """Return sentences about what the recorder had to leave out."""
    lost = [
        f"rank {part.rank} dropped {count(part.dropped)} spans: its recorder could not keep up"
        for part in parts
        if part.dropped
    ]
    unknown = [
        f"rank {part.rank}: the error of its clock against rank 0's is unknown"
        for part in parts
        if part.error_ns is None
    ]
    return lost + unknown
