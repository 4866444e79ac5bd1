"""Merging: the parts of all ranks on one clock in one file that Perfetto and the analyses read.

``merge`` is independent of the order of its inputs: equal parts give equal bytes. Large inputs go
through a file of records (`native_merge`) or a database (`bulk_merge`) in bounded memory; otherwise the columns of all
spans are held in memory (about 70 bytes a span).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ringtune import layout
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.analysis.batches import numbered
from ringtune.timeline.merging.bulk_merge import merge_in_bulk
from ringtune.timeline.merging.clocks import HostOffset, align, placements
from ringtune.timeline.merging.merged_file import write_merged
from ringtune.timeline.merging.native_merge import merge_natively
from ringtune.timeline.merging.parts import in_order, joinable, missing_ranks, one_part_a_rank, part_files
from ringtune.timeline.merging.report import MergeReport
from ringtune.timeline.reading import native_lines, reader
from ringtune.timeline.spans import Trace, concatenate

PathLike = str | os.PathLike[str]
Engine = Literal["memory", "database", "native"]


def merge(parts: Iterable[PathLike], output: PathLike, *, engine: Engine | None = None) -> MergeReport:
    """Merge part files into one trace; gzip when the output's name ends in ``.gz``. Written whole or not at all.

    Traces of other tools (PyTorch's profiler, Horovod) join by their wall clocks. Files that cannot be read are left
    out and reported, so one broken file does not cost the others.

    Args:
        parts: Files in any order; a run folder stands for its parts.
        output: The merged file.
        engine: In memory, in a database (`bulk_merge`), or in native code (`native_merge`). None: the fastest one that
            is installed, and memory for small inputs. All give the same trace.

    Raises:
        RingtuneError: No part could be read, parts are of different jobs, a rank comes twice, or two profiles of the
            same moments are taken for one rank.
        TraceIoError: The output cannot be written.
    """
    paths = sorted({path.resolve() for part in parts for path in _files_of(Path(part))})
    if not paths:
        raise RingtuneError("nothing to merge: no parts given; name a run folder or its timeline/rank-*.json files")
    engine = engine or _fastest_engine(paths)
    if engine == "native":
        return merge_natively(paths, Path(output))
    if engine == "database":
        return merge_in_bulk(paths, Path(output))
    traces, problems = _read_parts(paths)
    if not traces:
        raise RingtuneError(f"nothing to merge: {problems[0]}")
    joined = join(traces)
    traces.clear()  # the part's columns would double the memory while the joined ones are sorted and written
    target = Path(output)
    write_merged(target, joined, problems=problems, missing=missing_ranks(joined))
    return MergeReport(target, len(joined.spans), joined.parts, missing_ranks(joined), tuple(problems))


def _files_of(source: Path) -> list[Path]:
    """The parts of a folder; a folder without any, or a file, as it is."""
    return (part_files(source) if source.is_dir() else []) or [source]


def _fastest_engine(paths: Sequence[Path]) -> Engine:
    try:
        small = sum(path.stat().st_size for path in paths) <= reader.BULK_BYTES
    except OSError:
        return "memory"
    if small:
        return "memory"
    if native_lines.available():
        return "native"
    return "database" if find_spec("duckdb") is not None else "memory"


def merge_run(run: PathLike, output: PathLike | None = None) -> MergeReport:
    """Merge the parts of a run folder, by default into its ``timeline.json``.

    Raises:
        RingtuneError: The folder holds no parts, or as for `merge`.
    """
    folder = Path(run)
    parts = part_files(folder)
    if not parts:
        raise RingtuneError(
            f"{folder}: no parts of a timeline ({layout.TIMELINE_FOLDER}/rank-*.json); record one with --timeline"
        )
    return merge(parts, output if output is not None else layout.timeline_file(folder))


def read_whole(paths: Sequence[Path]) -> tuple[list[Trace], list[str]]:
    """Read files that are joined; the sentences are about those that cannot be read."""
    traces, problems = [], []
    for path in paths:
        try:
            traces.append(reader.read(path))
        except TraceIoError as error:
            problems.append(str(error))
    return traces, problems


def _read_parts(paths: Sequence[Path]) -> tuple[list[Trace], list[str]]:
    traces, problems = read_whole(paths)
    usable, unusable = joinable(traces)
    return usable, sorted(problems + unusable)


def join(traces: Sequence[Trace], offsets: Sequence[HostOffset] | None = None) -> Trace:
    """Bring traces of one job onto rank 0's clock and into one; times then count from the job's first event.

    Args:
        traces: One or more a rank.
        offsets: What brings each onto that clock, for traces that are `in_order`; default: `placements`.

    Raises:
        RingtuneError: The parts are of different jobs, or a rank comes twice.
    """
    ordered = in_order(traces)
    found = placements(ordered) if offsets is None else offsets
    aligned = [align(trace, offset) for trace, offset in zip(ordered, found, strict=True)]
    spans = numbered(concatenate([trace.spans for trace in aligned]))
    instants = sorted(
        (instant for trace in aligned for instant in trace.instants), key=lambda found: (found.at_ns, found.rank)
    )
    moments = ([int(spans.begin_ns.min())] if len(spans) else []) + [instant.at_ns for instant in instants]
    origin = min(moments, default=0)
    # In place, because `concatenate` has just made these columns and no other table holds them.
    for column in (spans.begin_ns, spans.end_ns):
        column -= origin
    return Trace(
        spans=spans,
        instants=tuple(replace(instant, at_ns=instant.at_ns - origin) for instant in instants),
        parts=one_part_a_rank(aligned),
        source="merged",
        clock="job",
        origin_ns=origin,
        skipped=sum(trace.skipped for trace in aligned),
    )
