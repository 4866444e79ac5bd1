"""Ranks of profiles that name none: PyTorch's profiler records a rank only where torch.distributed is initialized."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ringtune.timeline.spans import Trace

_MOMENT = re.compile(r"\.\d{10,}(?=\.)")
"""When a profile was written, as ``tensorboard_trace_handler`` puts it into its name after host and process."""

_NUMBER = re.compile(r"\d+")


def natural(name: str) -> str:
    """Return a key that sorts names with their numbers as numbers: process 999 comes before 1000."""
    return _NUMBER.sub(lambda number: number[0].zfill(20), name)


def with_ranks(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces in which profiles that do not say their rank have one, by the order of their files' names.

    Files of one process, which differ in the moment of their names alone, are of one rank. Nothing is changed where
    all may be of one rank, since none overlaps another in time, or where other traces say their ranks: the order would
    mean nothing then. A sentence on standard error says what was assumed.
    """
    if any(part.rank_known for trace in traces for part in trace.parts) or not _overlap(traces):
        return list(traces)
    processes = sorted({_process(trace) for trace in traces}, key=natural)
    print(
        f"ringtune warning: these {len(processes)} profiles do not name their ranks, which are taken from the order of "
        f"the files' names: {processes[0]} is rank 0; to say otherwise put the rank into each name, as in "
        "profile-rank0.json",
        file=sys.stderr,
    )
    return [as_rank(trace, processes.index(_process(trace)), len(processes)) for trace in traces]


def unix_range(trace: Trace) -> tuple[int, int]:
    """First and last moment of a trace with spans, in nanoseconds since 1970."""
    moved = trace.parts[0].unix_ns - trace.parts[0].monotonic_ns
    return int(trace.spans.begin_ns.min()) + moved, int(trace.spans.end_ns.max()) + moved


def _overlap(traces: Sequence[Trace]) -> bool:
    ranges = sorted(unix_range(trace) for trace in traces if len(trace.spans))
    return any(later[0] < earlier[1] for earlier, later in pairwise(ranges))


def _process(trace: Trace) -> str:
    return _MOMENT.sub("", str(trace.path))


def as_rank(trace: Trace, rank: int, size: int) -> Trace:
    """Return a trace of one rank as that of this rank of so many, if it does not say more."""
    return replace(
        trace,
        spans=replace(trace.spans, rank=np.full_like(trace.spans.rank, rank)),
        instants=tuple(replace(instant, rank=rank) for instant in trace.instants),
        parts=tuple(replace(part, rank=rank, size=max(part.size, size), rank_known=True) for part in trace.parts),
    )
