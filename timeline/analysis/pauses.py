"""Pauses of all ranks at once: steps in which every rank computed much longer than it usually does.

Nobody waits for anybody then, so no lateness shows them: saving a checkpoint, evaluating, or a file system that hangs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtune.timeline.analysis.batches import RankSteps, rank_steps
from ringtune.timeline.analysis.intervals import length_before
from ringtune.timeline.analysis.significance import Floats
from ringtune.timeline.analysis.steps import LONGER
from ringtune.timeline.spans import Ints, Trace


@dataclass(frozen=True)
class Pauses:
    """Of which ranks, the steps, and by how much the quickest one's computing was longer than it usually is."""

    ranks: tuple[int, ...]
    steps: Ints
    extra_ns: Ints


def pauses(trace: Trace) -> Pauses:
    """Return the pauses of all ranks; without steps, or where a trace does not know who waits, none.

    A rank that left less than half of the steps (its part is torn) says nothing of the others' and does not count.
    """
    left = [about for about in (rank_steps(trace, rank) for rank in trace.ranks) if about is not None]
    most = max((len(about.number) for about in left), default=0)
    found = [about for about in left if 2 * len(about.number) >= most]
    none = Pauses((), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    if not found or not all(about.knows_waiting and int(about.number[0]) >= 0 for about in found):
        return none
    steps = found[0].number
    for about in found[1:]:
        steps = np.intersect1d(steps, about.number)
    if not len(steps):
        return none
    computed = np.stack([computing(about)[np.searchsorted(about.number, steps)] for about in found])
    extra = (computed - np.median(computed, axis=1, keepdims=True)).min(axis=0)
    usual = float(np.median(computed.max(axis=0)))
    long = extra > (LONGER - 1) * usual
    return Pauses(tuple(about.rank for about in found), steps[long], extra[long].astype(np.int64))


def computing(about: RankSteps) -> Floats:
    """Return what a rank computed in each of its steps, in ns."""
    waited = length_before(about.waits, about.end) - length_before(about.waits, about.begin)
    return (about.end - about.begin - waited).astype(np.float64)
