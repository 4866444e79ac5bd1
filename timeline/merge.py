"""Merging: the parts of all ranks on one clock in one file that Perfetto and the analyses read.

``merge`` is independent of the order of its inputs: equal parts give equal bytes. Memory is that of the columns
(about 70 bytes a span); events are turned into JSON block by block.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ringtune import layout
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.clocks import align, host_offsets
from ringtune.timeline.merged_file import write_merged
from ringtune.timeline.reader import read
from ringtune.timeline.spans import PartInfo, Trace, concatenate

PathLike = str | os.PathLike[str]


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
            found.append(f"no part of rank {_listed(self.missing)}")
        torn = [part.rank for part in self.parts if part.truncated]
        if torn:
            found.append(f"the part of rank {_listed(torn)} ends early (killed, or still recording)")
        if self.dropped:
            found.append(f"{self.dropped} spans were dropped while recording")
        unsure = [part.rank for part in self.parts if part.error_ns is None]
        if unsure:
            found.append(f"the clock of rank {_listed(unsure)} was not measured; its times may be off")
        return found


def merge(parts: Iterable[PathLike], output: PathLike) -> MergeReport:
    """Merge part files into one trace; gzip when the output's name ends in ``.gz``. Written whole or not at all.

    Parts that cannot be read are left out and reported, so one broken file does not cost the others.

    Raises:
        RingtuneError: No part could be read, parts are of different jobs, or a rank comes twice.
        TraceIoError: The output cannot be written.
    """
    paths = sorted({Path(part).resolve() for part in parts})
    if not paths:
        raise RingtuneError("nothing to merge: no parts given; name a run folder or its timeline/rank-*.json files")
    traces, problems = _read_parts(paths)
    if not traces:
        raise RingtuneError(f"nothing to merge: {problems[0]}")
    joined = join(traces)
    traces.clear()  # its columns would double the memory while the joined ones are sorted and written
    missing = tuple(sorted(set(range(joined.size)) - {part.rank for part in joined.parts}))
    target = Path(output)
    write_merged(target, joined, problems=problems, missing=missing)
    return MergeReport(target, len(joined.spans), joined.parts, missing, tuple(problems))


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
                found.append((layout.rank_of(path), path))
            except ValueError:
                continue
        if found:
            return [path for _, path in sorted(found)]
    return []


def _read_parts(paths: Sequence[Path]) -> tuple[list[Trace], list[str]]:
    traces, problems = [], []
    for path in paths:
        try:
            trace = read(path)
        except TraceIoError as error:
            problems.append(str(error))
            continue
        if trace.source == "part" and len(trace.parts) == 1:
            traces.append(trace)
        else:
            kind = {"merged": "a merged file", "horovod": "Horovod's own timeline"}.get(trace.source, "no part")
            problems.append(f"{path}: {kind}, not one rank's part; left out")
    return traces, problems


def join(traces: Sequence[Trace]) -> Trace:
    """Bring parts of one job onto rank 0's clock and into one trace; times then count from the job's first event.

    Raises:
        RingtuneError: The parts are of different jobs, or a rank comes twice.
    """
    ordered = sorted(traces, key=lambda trace: trace.parts[0].rank)
    parts = [trace.parts[0] for trace in ordered]
    _check_one_job(parts)
    offsets = host_offsets(parts, [instant for trace in ordered for instant in trace.instants])
    aligned = [align(trace, offsets[trace.parts[0].host]) for trace in ordered]
    spans = concatenate([trace.spans for trace in aligned])
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
        parts=tuple(trace.parts[0] for trace in aligned),
        source="merged",
        clock="job",
        origin_ns=origin,
        skipped=sum(trace.skipped for trace in aligned),
    )


def _check_one_job(parts: Sequence[PartInfo]) -> None:
    for before, after in pairwise(parts):
        if before.rank == after.rank:
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


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
