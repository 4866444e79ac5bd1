"""How much of a rank's lateness the job would gain: one that computing hides costs nothing.

Notation, of a step whose ranks wait only after their last submit: batch b with its last submit L_b, start s_b (all
ranks had begun) and end e_b. What it took to start is d_b = s_b - max(L_b, e of the batch before), or s_b - L_b where
both ran beside each other. Had the late rank been on time, L_b would be earlier by its lateness x_b; the batches
follow from L_b - x_b with the same d_b and lengths. The gain is by how much earlier the last batch ends then, but not
before the other ranks were through with their computing. In a step whose ranks wait between their submits, all later
submits would be earlier too: there a lateness counts in full, and so it does where nothing says who waited.
"""

from __future__ import annotations

import numpy as np

from ringtune.timeline.analysis.batches import MISSING, BatchTable
from ringtune.timeline.spans import Ints, Mask, Trace
from ringtune.timeline.vocabulary import Stage

_NEVER = 2**62


def gained(trace: Trace, table: BatchTable, last: Ints, lateness: Ints, group: Ints | None = None) -> Ints:
    """Return what the job would gain of the lateness of each batch, in nanoseconds, were its last rank on time.

    Args:
        trace: Of all ranks.
        table: Its batches.
        last: Column of the rank that submitted each batch last; -1 for none.
        lateness: Of that rank; 0 for none.
        group: By column the number of a group of ranks that are late together; None: each rank is alone.
    """
    if not len(table.ids):
        return lateness
    steps, at = np.unique(table.step, return_inverse=True)
    group = np.arange(len(table.ranks)) if group is None else group
    accused = np.full(len(steps), -1)
    order = np.lexsort((lateness, at))
    latest = order[np.flatnonzero(np.append(np.diff(at[order]) != 0, True))]
    accused[at[latest]] = group[last[latest]]
    submitted = np.full((len(steps), len(table.ranks)), MISSING)
    np.maximum.at(submitted, at, table.submit)
    waited = _first_waits(trace, table, steps)
    known = ((waited != _NEVER) & (waited >= submitted)).all(axis=1) & (steps >= 0)
    np.logical_and.at(known, at, table.negotiated | table.scheduled)
    moved = np.where((lateness > 0) & (group[last] == accused[at]), lateness, 0)
    ended, sooner = _on_time(table, at, moved, len(steps))
    others = np.where(group[None, :] == accused[:, None], MISSING, waited).max(axis=1)
    gain = np.maximum(0, ended - np.maximum(sooner, others))
    return np.where(known[at] & (moved > 0), np.minimum(lateness, gain[at]), lateness)


def _first_waits(trace: Trace, table: BatchTable, steps: Ints) -> Ints:
    """When each rank first waited in each step; S x R."""
    found = np.full((len(steps), len(table.ranks)), _NEVER)
    waits = trace.spans.of_stage(Stage.WAIT)
    place = np.minimum(np.searchsorted(steps, waits.step), len(steps) - 1)
    column = np.minimum(np.searchsorted(table.ranks, waits.rank), len(table.ranks) - 1)
    inside: Mask = (steps[place] == waits.step) & (np.array(table.ranks)[column] == waits.rank)
    np.minimum.at(found, (place[inside], column[inside]), waits.begin_ns[inside])
    return found


def _on_time(table: BatchTable, at: Ints, moved: Ints, steps: int) -> tuple[Ints, Ints]:
    """When the last batch of each step ended, and when it would have, had submits been earlier by `moved`."""
    submit, start = table.submit.max(axis=1), table.begin.max(axis=1)
    length = table.done.max(axis=1) - start
    order = np.lexsort((start, at))
    first = np.searchsorted(at[order], np.arange(steps))
    turn = np.arange(len(order)) - first[at[order]]
    ended, sooner = np.full(steps, MISSING), np.full(steps, MISSING)
    for number in range(int(turn.max()) + 1):
        rows = order[turn == number]
        place = at[rows]
        behind = start[rows] >= ended[place]
        free = np.where(behind, np.maximum(submit[rows], ended[place]), submit[rows])
        before = submit[rows] - moved[rows]
        begin = np.where(behind, np.maximum(before, sooner[place]), before) + start[rows] - free
        ended[place] = np.maximum(ended[place], start[rows] + length[rows])
        sooner[place] = np.maximum(sooner[place], begin + length[rows])
    return ended, sooner
