"""An import: recordings of other tools on one clock, and the run folder that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.output_file import write_output
from ringtune.timeline.analysis.batches import rank_steps
from ringtune.timeline.importing.matching import Matches, matched
from ringtune.timeline.importing.skew import Skew, skews
from ringtune.timeline.importing.sources import Source, read_sources
from ringtune.timeline.importing.steps import with_optimizer_steps
from ringtune.timeline.merging.clocks import HostOffset, fixed_offset
from ringtune.timeline.merging.merge import join
from ringtune.timeline.merging.merged_file import write_merged
from ringtune.timeline.merging.parts import in_order, missing_ranks
from ringtune.timeline.merging.report import MergeReport
from ringtune.timeline.reading.foreign import EPOCH_NS
from ringtune.timeline.spans import Ints, PartInfo, Trace
from ringtune.timeline.units import ranks_text
from ringtune.timeline.vocabulary import Stage

IMPORTED = "imported"
"""Key of ``run.json`` under which an import says where the run came from."""


@dataclass(frozen=True)
class Imported:
    """What an import made.

    Attributes:
        run: The run folder.
        trace: All ranks on one clock.
        source: What was read.
        matches: How far the ranks' collectives found each other.
        skews: Clock of every rank but the lowest, by rank.
        corrected: Ranks whose clocks were.
        report: What the merged file lacks.
    """

    run: Path
    trace: Trace
    source: Source
    matches: Matches
    skews: dict[int, Skew]
    corrected: frozenset[int]
    report: MergeReport

    def sentences(self) -> list[str]:
        """What was found, for the user."""
        ranks, size = [part.rank for part in self.trace.parts], self.trace.size
        tools = ", ".join(sorted(set(self.source.tools.values())))
        word = "rank" if len(ranks) == 1 else "ranks"
        hang = self.source.hang
        return [
            *(hang.lines() if hang else []),
            f"{self.run}: {len(self.trace.spans)} spans of {tools}, {word} {ranks_text(ranks)} of {size}",
            self.matches.sentence(),
            *(skew.sentence(applied=skew.rank in self.corrected) for skew in self.skews.values()),
        ]


def import_run(paths: Sequence[Path], run: Path, *, allow_pickle: bool = False) -> Imported:
    """Make a run folder of recordings of other tools.

    Args:
        paths: Files, or folders of them; one or more a rank, all of one job.
        run: The folder to make; that of an earlier import is replaced.
        allow_pickle: Whether pickled dumps of flight recorders may be read.

    Raises:
        RingtuneError: There is no trace, a rank is not known or comes twice, they are of different jobs, or the folder
            holds something else.
    """
    _check_folder(run)
    source = read_sources(paths, allow_pickle=allow_pickle)
    traces, matches = matched(in_order(source.traces))
    traces = [with_optimizer_steps(trace) for trace in traces]  # not before: a device lags behind the host's steps
    walls = [_wall(trace) for trace in traces]
    apart = join(traces, walls)
    found, clocks = skews(apart)
    corrections = _corrections(apart, found, clocks)
    offsets = [corrections[one.parts[0].rank][0].over(_base(one.parts[0])) for one in traces]
    trace = join([_on_host(one, corrections[one.parts[0].rank][1]) for one in traces], offsets)
    write_merged(layout.timeline_file(run), trace, problems=source.problems, missing=missing_ranks(trace))
    report = MergeReport(
        layout.timeline_file(run), len(trace.spans), trace.parts, missing_ranks(trace), source.problems
    )
    corrected = frozenset(rank for rank, (clock, _) in corrections.items() if clock.offset_ns.any())
    made = Imported(run, trace, source, matches, found, corrected, report)
    for old in layout.step_logs(run).glob(layout.RANK_FILES):
        old.unlink()
    for part in trace.parts:
        _write_steps(run, trace, part.rank)
    write_output(layout.run_file(run), orjson.dumps(_document(made), option=orjson.OPT_INDENT_2))
    return made


def _check_folder(run: Path) -> None:
    if not run.exists() or (run.is_dir() and not any(run.iterdir())):
        return
    try:
        earlier = IMPORTED in orjson.loads(layout.run_file(run).read_bytes())
    except (OSError, ValueError, TypeError):
        earlier = False
    if not earlier:
        raise RingtuneError(f"{run}: is there already, and not from an import; name a new folder with -o")


def _base(part: PartInfo) -> int:
    """What is to be added to the trace's clock to get its wall clock, 0 where it has none."""
    return part.unix_ns - part.monotonic_ns


def _wall(trace: Trace) -> HostOffset:
    return fixed_offset(_base(trace.parts[0]), None, "wall")


def _corrections(
    trace: Trace, found: dict[int, Skew], clocks: Sequence[tuple[int, ...]]
) -> dict[int, tuple[HostOffset, str]]:
    """What is to be added to each rank's wall clock, and the rank's host.

    A clock of its own is a host of its own, since analyses take the times of one host as exact.
    """
    hosts = {part.rank: part.host for part in trace.parts}
    taken: set[str] = set()
    answer: dict[int, tuple[HostOffset, str]] = {}
    for ranks in clocks:
        host = hosts.get(ranks[0], "")
        if ranks is not clocks[0] and (not host or host in taken):
            host = f"{host or 'host'}#{ranks[0]}"
        taken.add(host)
        clock = _EXACT if ranks is clocks[0] else found[ranks[0]].correction()
        answer |= dict.fromkeys(ranks, (clock, host))
    return answer


_EXACT = fixed_offset(0, 0, "reference")


def _on_host(trace: Trace, host: str) -> Trace:
    return replace(trace, parts=tuple(replace(part, host=host) for part in trace.parts))


def _write_steps(run: Path, trace: Trace, rank: int) -> None:
    """Write the log of a rank's steps as a job leaves it, as far as the trace says it."""
    steps = rank_steps(trace, rank)
    if steps is None or not steps.knows_waiting:
        return
    moves = trace.spans.of_rank(rank).of_stage(Stage.COMMUNICATE)
    moves = moves.take(np.argsort(moves.begin_ns, kind="stable"))
    first, last = (np.searchsorted(moves.begin_ns, moments) for moments in (steps.begin, steps.end))
    moved, busy = (np.concatenate(([0], np.cumsum(column))) for column in (moves.bytes, moves.duration_ns))
    columns = {
        "step": steps.number,
        "begin_ns": steps.begin,
        "end_ns": steps.end,
        "bytes": moved[last] - moved[first],
        "collectives": last - first,
        "batches": last - first,
        "communicate_ns": busy[last] - busy[first],
        "wait_ns": _time_until(steps.waits, steps.end) - _time_until(steps.waits, steps.begin),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    lines = [orjson.dumps(dict(zip(columns, row, strict=True))) + b"\n" for row in rows]
    write_output(layout.step_log(run, rank), b"".join(lines))


def _time_until(intervals: Ints, moments: Ints) -> Ints:
    """How much of disjoint sorted intervals lies before each moment."""
    if not len(intervals):
        return np.zeros_like(moments)
    begun = np.searchsorted(intervals[:, 0], moments, side="right")
    whole = np.concatenate(([0], np.cumsum(intervals[:, 1] - intervals[:, 0])))
    beyond = np.maximum(0, intervals[begun - 1, 1] - moments)
    return np.where(begun > 0, whole[begun] - beyond, 0)


def _document(made: Imported) -> dict[str, Any]:
    trace, size = made.trace, made.trace.size
    hosts = {part.rank: part.host for part in trace.parts}
    begin_ns = trace.origin_ns if trace.origin_ns > EPOCH_NS else None  # else no trace has a wall clock
    end_ns = None if begin_ns is None else begin_ns + int(trace.spans.end_ns.max(initial=0))
    return {
        "format": layout.FORMAT,
        "name": made.run.name,
        "status": "failed" if made.source.hang else "finished",
        "created_unix_ns": begin_ns,
        "ended_unix_ns": end_ns,
        "size": size,
        "hosts": [hosts.get(rank, "") for rank in range(size)],
        "labels": {"from": ", ".join(sorted(set(made.source.tools.values())))},
        IMPORTED: {
            "files": made.source.tools,
            "ranks": [part.rank for part in trace.parts],
            "missing_ranks": list(made.report.missing),
            "collectives": {
                "total": made.matches.collectives,
                "matched": made.matches.matched,
                "matched_by_number": made.matches.numbered,
                "peer_to_peer": made.matches.peer_to_peer,
                "absent_by_rank": {str(rank): count for rank, count in made.matches.absent.items()},
            },
            "clock_skew": [
                {
                    "rank": skew.rank,
                    "reference": skew.reference,
                    "offset_ns": skew.offset_ns,
                    "error_ns": skew.error_ns,
                    "drift_ppb": skew.drift_ppb,
                    "collectives": skew.collectives,
                    "contradicting": skew.contradicting,
                    "applied": skew.rank in made.corrected,
                }
                for skew in made.skews.values()
            ],
            "hang": made.source.hang.lines() if made.source.hang else [],
            "problems": made.report.sentences(),
        },
    }
