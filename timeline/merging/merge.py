"""Merging: the parts of all ranks on one clock in one file that Perfetto and the analyses read.

``merge`` is independent of the order of its inputs: equal parts give equal bytes. Memory holds the columns of all
spans, about 65 bytes a span, and those of one part more where one is torn or packed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

from ringtune import layout
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.analysis.batches import numbered
from ringtune.timeline.merging.clocks import HostOffset, align, placements
from ringtune.timeline.merging.merged_file import write_merged
from ringtune.timeline.merging.parts import in_order, joinable, missing_ranks, one_part_a_rank, part_files
from ringtune.timeline.merging.report import MergeReport
from ringtune.timeline.reading import reader
from ringtune.timeline.reading.part_reader import recorded_spans
from ringtune.timeline.spans import Columns, SpanTable, Trace, empty_table, fill, joined_tables, room_for

PathLike = str | os.PathLike[str]


def merge(parts: Iterable[PathLike], output: PathLike, threads: int = 1) -> MergeReport:
    """Merge part files into one trace; gzip when the output's name ends in ``.gz``. Written whole or not at all.

    Traces of other tools (PyTorch's profiler, Horovod) join by their wall clocks. Files that cannot be read are left
    out and reported, so one broken file does not cost the others.

    Args:
        parts: Files in any order; a run folder stands for its parts.
        output: The merged file.
        threads: How many read parts; 1 where the interpreter ends, which starts no threads any more.

    Raises:
        RingtuneError: No part could be read, parts are of different jobs, a rank comes twice, or two profiles of the
            same moments are taken for one rank.
        TraceIoError: The output cannot be written.
    """
    paths = sorted({path.resolve() for part in parts for path in _files_of(Path(part))})
    if not paths:
        raise RingtuneError("nothing to merge: no parts given; name a run folder or its timeline/rank-*.spans files")
    read, unread, room = read_whole(paths, threads)
    traces, unusable = joinable(read)
    read.clear()  # so that memory is free as soon as a part's columns are taken over
    problems = sorted(unread + unusable)
    if not traces:
        raise RingtuneError(f"nothing to merge: {problems[0]}")
    joined = join_and_empty(traces, room=room)
    target = Path(output)
    write_merged(target, joined, problems=problems, missing=missing_ranks(joined))
    return MergeReport(target, len(joined.spans), joined.parts, missing_ranks(joined), tuple(problems))


def _files_of(source: Path) -> list[Path]:
    """The parts of a folder; a folder without any, or a file, as it is."""
    return (part_files(source) if source.is_dir() else []) or [source]


def merge_run(run: PathLike, output: PathLike | None = None) -> MergeReport:
    """Merge the parts of a run folder, by default into its ``timeline.json``.

    Raises:
        RingtuneError: The folder holds no parts, or as for `merge`.
    """
    folder = Path(run)
    parts = part_files(folder)
    if not parts:
        raise RingtuneError(
            f"{folder}: no parts of a timeline ({layout.TIMELINE_FOLDER}/rank-*.spans); record one with --timeline"
        )
    return merge(parts, output if output is not None else layout.timeline_file(folder))


def read_whole(paths: Sequence[Path], threads: int = 1) -> tuple[list[Trace], list[str], Columns]:
    """Read files that are joined, by so many threads; the sentences are about those that cannot be read.

    Where all are whole parts, their spans lie next to each other in these columns, so that joining copies nothing.
    """
    counts = list(map(recorded_spans, paths))
    # Where one is not known all are copied, each part's memory becoming free as soon as it has been.
    ends = list(accumulate(counts if all(counts) else [0] * len(counts), initial=0))
    room = room_for(ends[-1])
    parts = [{column: values[begin:end] for column, values in room.items()} for begin, end in pairwise(ends)]
    if threads > 1:
        # Numpy lets go of the interpreter while it works on whole columns.
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(_read_or_problem, paths, parts))
    else:
        found = list(map(_read_or_problem, paths, parts))
    return [one for one in found if isinstance(one, Trace)], [one for one in found if isinstance(one, str)], room


def _read_or_problem(path: Path, room: Columns) -> Trace | str:
    try:
        return reader.read(path, room)
    except TraceIoError as error:
        return str(error)


def join(traces: Sequence[Trace], offsets: Sequence[HostOffset] | None = None) -> Trace:
    """Bring traces of one job onto rank 0's clock and into one; times then count from the job's first event.

    Args:
        traces: One or more a rank.
        offsets: What brings each onto that clock, for traces that are `in_order`; default: `placements`.

    Raises:
        RingtuneError: The parts are of different jobs, or a rank comes twice.
    """
    return join_and_empty(list(traces), offsets)


def join_and_empty(
    traces: list[Trace], offsets: Sequence[HostOffset] | None = None, room: Columns | None = None
) -> Trace:
    """As `join`; the list is empty afterwards, so that the memory of each trace is free once it has been taken over.

    Where all spans lie in ``room`` in the order of the traces, they stay there, and nobody else may use them any more.
    """
    ordered = in_order(traces)
    traces.clear()
    if room is not None and not fill(room, [trace.spans for trace in ordered]):
        room = None
    found = placements(ordered) if offsets is None else offsets
    count, skipped = len(ordered), sum(trace.skipped for trace in ordered)
    abouts: list[Trace] = []

    def aligned() -> Iterator[SpanTable]:
        for offset in found:
            trace = align(ordered.pop(0), offset)
            abouts.append(replace(trace, spans=empty_table()))
            yield trace.spans
            del trace

    spans = numbered(joined_tables(aligned(), sum(len(trace.spans) for trace in ordered), room))
    assert len(abouts) == count
    instants = sorted(
        (instant for trace in abouts for instant in trace.instants), key=lambda found: (found.at_ns, found.rank)
    )
    moments = ([int(spans.begin_ns.min())] if len(spans) else []) + [instant.at_ns for instant in instants]
    origin = min(moments, default=0)
    # In place, because these columns have just been made and no other table holds them.
    for column in (spans.begin_ns, spans.end_ns):
        column -= origin
    return Trace(
        spans=spans,
        instants=tuple(replace(instant, at_ns=instant.at_ns - origin) for instant in instants),
        parts=one_part_a_rank(abouts),
        source="merged",
        clock="job",
        origin_ns=origin,
        skipped=skipped,
    )
