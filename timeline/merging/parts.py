"""The parts of a job: the files that hold them, which traces belong together, and what is known of each rank."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.timeline.merging.profiles import unix_range, with_ranks
from ringtune.timeline.reading.part_reader import declared_size, is_part
from ringtune.timeline.spans import PartInfo, Trace


def part_files(folder: Path) -> list[Path]:
    """Return the part files of a run folder, or of a folder of parts, by rank."""
    for place in (layout.timeline_parts(folder), folder):
        found = []
        for path in place.glob(layout.RANK_FILES):
            if not path.name.endswith(layout.PART_SUFFIXES):
                continue
            try:
                found.append((layout.rank_of(path), len(path.name), path))
            except ValueError:
                continue
        if found:
            return [path for *_, path in sorted(found)]
    return []


def hold_the_same(merged: Path, parts: Sequence[Path]) -> bool:
    """Whether a merged file was made of these parts, whose records are read some twenty times as fast.

    Args:
        merged: The merged file.
        parts: All part files of the folder, by rank.
    """
    try:
        made, *states = [path.lstat() for path in (merged, *parts)]
        if not states or not all(stat.S_ISREG(one.st_mode) for one in (made, *states)):
            return False
        if any(one.st_mtime_ns > made.st_mtime_ns for one in states):
            return False
        return all(map(is_part, parts)) and declared_size(parts[0]) == len({layout.rank_of(part) for part in parts})
    except OSError:
        return False


def files_of_rank(folder: Path, rank: int) -> list[Path]:
    """Return the files of one rank's part in a run folder, in the order in which they were written."""
    return [path for path in part_files(folder) if layout.rank_of(path) == rank]


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
