"""Steps of a trace: their lengths, some of them alone, and where the start-up ends.

The first steps of a job connect ranks, compile kernels and fill caches; they say nothing about the others. The start-up
ends at the first step that is as long as those after it: not longer than 1.5 times their median, nor than three times
their spread above it. A later step that is long because of one rank alone is no start-up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ringtune.timeline.analysis.batches import rank_steps
from ringtune.timeline.analysis.buckets import bucket_names
from ringtune.timeline.analysis.intervals import intersection, length, union
from ringtune.timeline.distinct import distinct_numbers
from ringtune.timeline.spans import Ints, SpanTable, Trace
from ringtune.timeline.units import time_text
from ringtune.timeline.vocabulary import Stage

LONGER = 1.5
_NEXT = 20
"""So many steps after a step say how long it should be."""
_LEAST = 3
_BEGINS_BY = 10
"""A recording that begins at a later step holds no start-up."""


@dataclass(frozen=True)
class Startup:
    """Steps ``first`` to ``last`` of the trace: how long they took, and how much of it a rank computed alone.

    ``rank_ns``: by how much ``rank`` computed longer in them than every other rank.
    """

    first: int
    last: int
    length_ns: int
    rank: int
    rank_ns: int

    def sentence(self) -> str:
        """Return what is left out, for example ``steps 0-1 (start-up, 1.20 s) left out``."""
        steps = f"step {self.first}" if self.first == self.last else f"steps {self.first}-{self.last}"
        blame = ""
        if self.rank_ns > self.length_ns / 2:
            blame = f", of which rank {self.rank} alone took {time_text(self.rank_ns)}"
        return f"{steps} (start-up, {time_text(self.length_ns)}{blame}) left out"


@dataclass(frozen=True)
class Counted:
    """A trace without its start-up, and what was left out."""

    trace: Trace
    startup: Startup | None


def counted(trace: Trace) -> Counted:
    """Return a trace without its start-up."""
    found = startup(trace)
    return Counted(trace if found is None else select_steps(trace, found.last + 1, None), found)


def startup(trace: Trace) -> Startup | None:
    """Return the start-up of a trace; None where its first step is as long as the others."""
    steps, lengths = step_lengths(trace.spans)
    if not len(steps) or steps[0] >= _BEGINS_BY:
        return None
    alone: list[tuple[int, int]] = []
    for place in range(len(steps) - _LEAST):
        usual, most = _usual(lengths[place + 1 : place + 1 + _NEXT])
        if lengths[place] <= most:
            break
        rank, rank_ns = _alone(trace, int(steps[place]))
        if place and rank_ns > (lengths[place] - usual) / 2:
            break
        alone.append((rank, rank_ns))
    if not alone:
        return None
    rank, rank_ns = max(alone, key=lambda one: one[1])
    return Startup(int(steps[0]), int(steps[len(alone) - 1]), int(lengths[: len(alone)].sum()), rank, rank_ns)


def _usual(lengths: Ints) -> tuple[float, float]:
    """Return the usual length of steps, and the most that is as long."""
    usual = float(np.median(lengths))
    spread = 1.4826 * float(np.median(np.abs(np.log(lengths / usual)))) if lengths.min() > 0 else 0.0
    return usual, usual * max(LONGER, float(np.exp(3 * spread)))


def _alone(trace: Trace, step: int) -> tuple[int, int]:
    """Return the rank that computed longest in a step, and how much longer than every other rank; 0 for one rank."""
    busy = []
    for about in filter(None, (rank_steps(trace, rank) for rank in trace.ranks)):
        within = about.number == step
        whole = union(about.begin[within], about.end[within])
        busy.append((length(whole) - length(intersection(whole, about.waits)), -about.rank))
    busy.sort(reverse=True)
    return (-busy[0][1], busy[0][0] - busy[1][0]) if len(busy) > 1 else (-1, 0)


def select_steps(trace: Trace, first: int | None, end: int | None) -> Trace:
    """Return the trace with only the spans of the steps first <= step < end; spans of no known step are left out."""
    step = trace.spans.step
    chosen = step >= max(0, first or 0)
    if end is not None:
        chosen &= step < end
    return replace(trace, spans=trace.spans.take(chosen), buckets=bucket_names(trace))


def step_lengths(spans: SpanTable) -> tuple[Ints, Ints]:
    """Return (step, length in ns): each step is as long as the slowest of its ranks."""
    steps, lengths, _ = _lengths_and_ends(spans)
    return steps, lengths


def job_step_lengths(spans: SpanTable) -> tuple[Ints, Ints]:
    """Return (step, length in ns) as `step_lengths`, but no moment counts for two steps.

    Where a rank pauses after its gradients were sent, the others wait for it in their next step: one pause, in two
    steps. So a step is at most as long as the last of its ranks ended it after the last rank ended the one before.
    """
    steps, lengths, ends = _lengths_and_ends(spans)
    apart = np.flatnonzero(np.diff(steps) == 1) + 1
    lengths[apart] = np.clip(lengths[apart], 0, np.maximum(0, ends[apart] - ends[apart - 1]))
    return steps, lengths


def _lengths_and_ends(spans: SpanTable) -> tuple[Ints, Ints, Ints]:
    """Return each step, how long the slowest of its ranks took, and when the last one ended it."""
    whole = spans.take(spans.in_stage(Stage.STEP) & (spans.step >= 0))
    steps, place = distinct_numbers(whole.step)
    longest, ends = (np.zeros(len(steps), dtype=np.int64) for _ in range(2))
    np.maximum.at(longest, place, whole.duration_ns)
    np.maximum.at(ends, place, whole.end_ns)
    return steps, longest, ends
