"""How much of a rank's lateness the job would gain: one that computing hides costs nothing.

Notation, of a step whose ranks wait only after their last submit: batch b with its last submit L_b, start s_b (all
ranks had begun) and end e_b. What it took to start is d_b = s_b - max(L_b, e of the batch before), or s_b - L_b where
both ran beside each other. Had the late rank been on time, L_b would be earlier by its lateness x_b (of batches
that count for another cause: by as much as it was last, but no more than in the others); the batches follow from
L_b - x_b with the same d_b and lengths. The gain is by how much earlier the last batch ends then, but not
before the other ranks were through with their computing. In a step whose ranks wait between their submits, all later
submits would be earlier too: there a lateness counts in full, and so it does where nothing says who waited.
"""

from __future__ import annotations

import numpy as np

from ringtune.timeline.analysis.batches import MISSING, BatchTable
from ringtune.timeline.distinct import numbered_rows
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
    first, at = numbered_rows(table.step)
    steps = table.step[first]
    group = np.arange(len(table.ranks)) if group is None else group
    members, waited = table.members[first], _first_waits(trace, table, steps)
    known = _known(table, at, members, waited) & (steps >= 0)
    waited = np.where(members, waited, MISSING)
    accused = np.full(len(steps), -1)
    order = np.lexsort((lateness, at))
    latest = order[np.flatnonzero(np.append(np.diff(at[order]) != 0, True))]
    accused[at[latest]] = group[last[latest]]
    most = np.zeros(len(steps), dtype=np.int64)
    most[at[latest]] = lateness[latest]
    own = group[last] == accused[at]
    mine = group == accused[:, None]
    moved = np.where(own & (lateness > 0), lateness, np.minimum(_behind(table.submit, mine[at]), most[at]))
    gain = _gain(table, at, moved, np.where(mine, MISSING, waited).max(axis=1))
    # Of the others it is enough to know that none gains more than all together would.
    together = np.maximum(lateness, np.minimum(_behind_any(table.submit, group), most[at]))
    bound = _gain(table, at, together, _soonest(waited, group))
    return np.where(known[at], np.minimum(lateness, np.where(own, gain[at], bound[at])), lateness)


def _behind(submit: Ints, mine: Mask) -> Ints:
    """By how much some ranks (B x R) submitted a batch after all others; 0 where they did not, or are alone in it."""
    own, others = np.where(mine, submit, MISSING).max(axis=1), np.where(mine, MISSING, submit).max(axis=1)
    return np.where((own != MISSING) & (others != MISSING), np.maximum(0, own - others), 0)


def _behind_any(submit: Ints, group: Ints) -> Ints:
    """By how much the last group submitted a batch after all others."""
    groups = np.unique(group)
    if len(groups) == len(group) > 1:
        second, first = np.partition(submit, -2, axis=1)[:, -2:].T
        return np.where(second != MISSING, first - second, 0)
    each = [_behind(submit, np.broadcast_to(group == one, submit.shape)) for one in groups]
    found: Ints = np.max(each, axis=0)
    return found


def _known(table: BatchTable, at: Ints, members: Mask, waited: Ints) -> Mask:
    """Steps whose batches are all of the same ranks, which submit them all before they wait; S."""
    submitted = np.full(waited.shape, MISSING)
    np.maximum.at(submitted, at, table.submit)
    found: Mask = (~members | ((waited != _NEVER) & (waited >= submitted))).all(axis=1)
    np.logical_and.at(found, at, (table.negotiated | table.scheduled) & (table.members == members[at]).all(axis=1))
    return found


def _soonest(waited: Ints, group: Ints) -> Ints:
    """When the ranks were through with computing, whichever group may have been sooner; S."""
    groups = np.unique(group)
    if len(groups) == len(group) > 1:  # all but the last rank
        second: Ints = np.partition(waited, -2, axis=1)[:, -2]
        return second
    found: Ints = np.min([np.where(group == one, MISSING, waited).max(axis=1) for one in groups], axis=0)
    return found


def _gain(table: BatchTable, at: Ints, moved: Ints, others: Ints) -> Ints:
    """By how much earlier each step would be through, not before the others had computed."""
    ended, sooner = _on_time(table, at, moved, len(others))
    gain: Ints = np.maximum(0, ended - np.maximum(sooner, others))
    return gain


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
