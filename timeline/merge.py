"""Merging: the parts of all ranks on one clock in one file that Perfetto and the analyses read.

``merge`` is independent of the order of its inputs: equal parts give equal bytes. Large ones go through a file of
records (`ringtune.timeline.native_merge`) or a database (`ringtune.timeline.bulk_merge`) in bounded memory; else memory
is that of the columns (about 70 bytes a span).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Literal

from ringtune import layout
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline import native_lines, reader
from ringtune.timeline.batches import numbered
from ringtune.timeline.clocks import align, placements
from ringtune.timeline.merged_file import write_merged
from ringtune.timeline.profiles import unix_range, with_ranks
from ringtune.timeline.reader import read
from ringtune.timeline.spans import PartInfo, Trace, concatenate
from ringtune.timeline.units import ranks_text

PathLike = str | os.PathLike[str]
Way = Literal["memory", "database", "native"]


@dataclass(frozen=True)
class MergeReport:
    """What a merge did. ``problems``: inputs left out, one sentence each; ``missing``: ranks without a part."""

    output: Path
    spans: int
    parts: tuple[PartInfo, ...]
    missing: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def dropped(self) -> int:
        """Spans the recorders had to drop."""
        return sum(part.dropped for part in self.parts)

    def sentences(self) -> list[str]:
        """What the user should know about the merged file's completeness."""
        found = list(self.problems)
        if self.missing:
            found.append(f"no part of rank {ranks_text(self.missing)}")
        torn = [part.rank for part in self.parts if part.truncated]
        if torn:
            found.append(f"the part of rank {ranks_text(torn)} ends early (killed, or still recording)")
        if self.dropped:
            found.append(f"{self.dropped} spans were dropped while recording")
        unsure = [part.rank for part in self.parts if part.error_ns is None]
        if unsure:
            found.append(f"the clock of rank {ranks_text(unsure)} was not measured; its times may be off")
        return found


def merge(parts: Iterable[PathLike], output: PathLike, *, way: Way | None = None) -> MergeReport:
    """Merge part files into one trace; gzip when the output's name ends in ``.gz``. Written whole or not at all.

    Traces of other tools (PyTorch's profiler, Horovod) join by their wall clocks. Files that cannot be read are left
    out and reported, so one broken file does not cost the others.

    Args:
        parts: Files in any order; a run folder stands for its parts.
        output: The merged file.
        way: In memory, in a database (`ringtune.timeline.bulk_merge`), or natively (`ringtune.timeline.native_merge`).
            None: the quickest that is installed and pays. All give the same trace.

    Raises:
        RingtuneError: No part could be read, parts are of different jobs, a rank comes twice, or two profiles of the
            same moments are taken for one rank.
        TraceIoError: The output cannot be written.
    """
    paths = sorted({path.resolve() for part in parts for path in _files_of(Path(part))})
    if not paths:
        raise RingtuneError("nothing to merge: no parts given; name a run folder or its timeline/rank-*.json files")
    way = way or _best_way(paths)
    if way == "native":
        from ringtune.timeline.native_merge import merge_natively

        return merge_natively(paths, Path(output))
    if way == "database":
        from ringtune.timeline.bulk_merge import merge_in_bulk

        return merge_in_bulk(paths, Path(output))
    traces, problems = _read_parts(paths)
    if not traces:
        raise RingtuneError(f"nothing to merge: {problems[0]}")
    joined = join(traces)
    traces.clear()  # its columns would double the memory while the joined ones are sorted and written
    target = Path(output)
    write_merged(target, joined, problems=problems, missing=missing_ranks(joined))
    return MergeReport(target, len(joined.spans), joined.parts, missing_ranks(joined), tuple(problems))


def _files_of(source: Path) -> list[Path]:
    """The parts of a folder; a folder without any, or a file, as it is."""
    return (part_files(source) if source.is_dir() else []) or [source]


def _best_way(paths: Sequence[Path]) -> Way:
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


def part_files(folder: Path) -> list[Path]:
    """Return the part files of a run folder, or of a folder of parts, by rank."""
    for place in (layout.timeline_parts(folder), folder):
        found = []
        for path in [*place.glob("rank-*.json"), *place.glob("rank-*.json.gz")]:
            try:
                found.append((layout.rank_of(path), len(path.name), path))
            except ValueError:
                continue
        if found:
            return [path for *_, path in sorted(found)]
    return []


def files_of_rank(folder: Path, rank: int) -> list[Path]:
    """Return the files of one rank's part in a run folder, in the order in which they were written."""
    return [path for path in part_files(folder) if layout.rank_of(path) == rank]


def _read_parts(paths: Sequence[Path]) -> tuple[list[Trace], list[str]]:
    traces, problems = [], []
    for path in paths:
        try:
            traces.append(read(path))
        except TraceIoError as error:
            problems.append(str(error))
    usable, unusable = joinable(traces)
    return usable, sorted(problems + unusable)


def joinable(traces: Sequence[Trace]) -> tuple[list[Trace], list[str]]:
    """Split whole traces into those that can be joined and sentences about the others.

    Raises:
        RingtuneError: Two profiles of the same moments are taken for one rank.
    """
    usable, problems = [], []
    for trace in traces:
        if trace.source == "merged":
            problems.append(f"{trace.path}: a merged file, not one rank's part; left out")
        elif trace.source == "part" and len(trace.parts) != 1:
            problems.append(f"{trace.path}: no part, it holds several ranks; left out")
        elif trace.source in ("horovod", "chrome") and not (trace.parts and trace.parts[0].unix_ns):
            problems.append(f"{trace.path}: no part, and no wall clock by which it could be joined; left out")
        else:
            usable.append(trace)
    usable = with_ranks(usable)
    _check_ranks_of_profiles([trace for trace in usable if trace.source == "chrome" and len(trace.spans)])
    return usable, problems


def join(traces: Sequence[Trace]) -> Trace:
    """Bring traces of one job onto rank 0's clock and into one; times then count from the job's first event.

    Raises:
        RingtuneError: The parts are of different jobs, or a rank comes twice.
    """
    ordered = in_order(traces)
    aligned = [align(trace, offset) for trace, offset in zip(ordered, placements(ordered), strict=True)]
    spans = numbered(concatenate([trace.spans for trace in aligned]))
    instants = sorted(
        (instant for trace in aligned for instant in trace.instants), key=lambda found: (found.at_ns, found.rank)
    )
    moments = ([int(spans.begin_ns.min())] if len(spans) else []) + [instant.at_ns for instant in instants]
    origin = min(moments, default=0)
    # In place: `concatenate` has just made these columns, nobody else holds them.
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


def in_order(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces of one job by rank, ringtune's own parts first.

    Raises:
        RingtuneError: The parts are of different jobs, or a rank comes twice.
    """
    own = [trace for trace in traces if trace.source == "part"]
    own.sort(key=lambda trace: (trace.parts[0].rank, trace.parts[0].file))
    others = [trace for trace in traces if trace.source != "part"]
    _check_one_job([trace.parts[0] for trace in own])
    return own + sorted(others, key=lambda trace: (trace.parts[0].rank, trace.parts[0].unix_ns, str(trace.path)))


def one_part_a_rank(traces: Sequence[Trace]) -> tuple[PartInfo, ...]:
    """Return what is known of each rank; ringtune's own part says more than another tool's trace."""
    found: dict[int, PartInfo] = {}
    for trace in traces:
        for part in trace.parts:
            first = found.setdefault(part.rank, part)
            if first is not part and trace.source == "part":
                found[part.rank] = _one_part(first, part)
    return tuple(found[rank] for rank in sorted(found))


def _one_part(first: PartInfo, next_file: PartInfo) -> PartInfo:
    """Two files of one rank as one part."""
    known = first.recorded is not None and next_file.recorded is not None
    errors = (first.error_ns, next_file.error_ns)
    return replace(
        first,
        recorded=(first.recorded or 0) + (next_file.recorded or 0) if known else None,
        dropped=first.dropped + next_file.dropped,
        truncated=first.truncated or next_file.truncated,
        error_ns=None if None in errors else max(error for error in errors if error is not None),
    )


def missing_ranks(joined: Trace) -> tuple[int, ...]:
    """Ranks of the job without a part."""
    return tuple(sorted(set(range(joined.size)) - {part.rank for part in joined.parts}))


def _check_ranks_of_profiles(traces: Sequence[Trace]) -> None:
    """A rank has one profile at a time: two of the same moments are of two ranks that did not know their number."""
    seen: dict[int, tuple[int, int, Trace]] = {}
    for begin, end, trace in sorted(((*unix_range(trace), trace) for trace in traces), key=lambda found: found[:2]):
        for part in trace.parts:
            before = seen.get(part.rank)
            if before is not None and begin < before[1]:
                raise RingtuneError(
                    f"{before[2].path} and {trace.path} are both taken for rank {part.rank}, at the same time; put the "
                    "rank into each file's name, as in profile-rank0.json"
                )
            seen[part.rank] = (begin, end, trace)


def _check_one_job(parts: Sequence[PartInfo]) -> None:
    for before, after in pairwise(parts):
        if (before.rank, before.file) == (after.rank, after.file):
            raise RingtuneError(
                f"rank {after.rank} comes twice: {before.path} and {after.path}; give each rank's part once"
            )
    jobs = {part.job: part for part in parts}
    if len(jobs) > 1:
        first, second = list(jobs.values())[:2]
        raise RingtuneError(
            f"parts of different jobs: {first.path} is of {first.job!r}, {second.path} of {second.job!r}; "
            "merge each job by itself"
        )
