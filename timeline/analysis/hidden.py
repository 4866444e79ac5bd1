"""How much of a rank's lateness the job would gain: one that computing hides costs nothing.

Notation, of a step whose ranks wait only after their last submit: batch b with its last submit L_b, start s_b (all
ranks had begun) and end e_b. What it took to start is d_b = s_b - max(L_b, e of the batch before), or s_b - L_b where
both ran beside each other. Had the late rank been on time, L_b would be earlier by its lateness x_b (of batches
that count for another cause: by as much as it was last, but no more than in the others); the batches follow from
L_b - x_b with the same d_b and lengths. The gain is by how much earlier the last batch ends then, but not
before the other ranks were through with their computing. In a step whose ranks wait between their submits, all later
submits would be earlier too: there a lateness counts in full, and so it does where nothing says who waited.

A rank that agrees to a batch last delays it alike: then L_b is the last agreement, and no rank computes less. One whose
link ends a batch last makes it longer for the batches after it in its step; in the last batch of a step it delays only
itself, which costs what it brings along into the submits of the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    group = np.arange(len(table.ranks)) if group is None else group
    waits = _waits(trace, table)
    at, known, waited = waits.at, waits.known, waits.first
    latest = _latest(at, lateness)
    accused, most = group[last[latest]], lateness[latest]
    own = group[last] == accused[at]
    mine = group == accused[:, None]
    moved = np.where(own & (lateness > 0), lateness, np.minimum(_behind(table.submit, mine[at]), most[at]))
    gain = _gain(table, at, _Sooner(moved, 0 * moved, 0 * moved), np.where(mine, MISSING, waited).max(axis=1))
    # Of the others it is enough to know that none gains more than all together would.
    together = np.maximum(lateness, np.minimum(_behind_any(table.submit, group), most[at]))
    bound = _gain(table, at, _Sooner(together, 0 * moved, 0 * moved), _soonest(waited, group))
    return np.where(known[at], np.minimum(lateness, np.where(own, gain[at], bound[at])), lateness)


def gained_by_agreement(trace: Trace, table: BatchTable, last: Ints, lateness: Ints) -> Ints:
    """Return the same of the lateness of the ranks that agreed last: all begin sooner, and compute as long."""
    if not len(table.ids):
        return lateness
    waits = _waits(trace, table)
    through = waits.first.max(axis=1)
    # A rank comes to a batch of a schedule when it is through with the one before, and agrees to it so much later.
    ready = np.where(table.scheduled, table.submit.max(axis=1), table.agreed.max(axis=1))

    def gain(moved: Ints, _: bool) -> Ints:
        begun = np.where(table.scheduled, moved, 0)
        return _gain(table, waits.at, _Sooner(moved - begun, begun, 0 * moved), through, ready)

    return _bounded(waits, (last, lateness), gain)


def gained_by_release(trace: Trace, table: BatchTable, last: Ints, carried: Ints, group: Ints | None = None) -> Ints:
    """Return the same of what of the lateness of each batch its last rank brought along, which was released late."""
    if not len(table.ids):
        return carried
    group = np.arange(len(table.ranks)) if group is None else group
    waits = _waits(trace, table)
    mine = group == group[last[_latest(waits.at, carried)]][:, None]
    others, any_others = np.where(mine, MISSING, waits.first).max(axis=1), _soonest(waits.first, group)

    def gain(moved: Ints, of_all: bool) -> Ints:
        return _gain(table, waits.at, _Sooner(moved, 0 * moved, 0 * moved), any_others if of_all else others)

    return _bounded(waits, (_groups(last, group), carried), gain)


def gained_by_links(
    trace: Trace, table: BatchTable, late: tuple[Ints, Ints], brought: tuple[Ints, Ints], group: Ints | None = None
) -> Ints:
    """Return the same of the lateness with which a rank ended each batch.

    Args:
        trace: Of all ranks.
        table: Its batches.
        late: Column of the rank that ended each batch last, -1 for none, and by how much.
        brought: The same of submits, and what the job would gain of what it brought along.
        group: By column the number of a group of ranks that are late together; None: each rank is alone.
    """
    if not len(table.ids):
        return late[1]
    group = np.arange(len(table.ranks)) if group is None else group
    waits, late = _waits(trace, table), (_groups(late[0], group), late[1])
    final = np.zeros(len(late[1]), dtype=np.bool_)
    final[_latest(waits.at, table.begin.max(axis=1))] = True

    def gain(moved: Ints, _: bool) -> Ints:
        shorter = np.where(final, 0, moved)
        return _gain(table, waits.at, _Sooner(0 * moved, 0 * moved, shorter), waits.first.max(axis=1))

    found = _bounded(waits, late, gain)
    follows = np.append(np.diff(waits.steps) == 1, False)
    bringing = _groups(brought[0], group)
    for one in np.unique(late[0][late[0] >= 0]).tolist():
        costs = np.zeros(len(waits.steps) + 1, dtype=np.int64)
        np.maximum.at(costs, waits.at[bringing == one], brought[1][bringing == one])
        rows = np.flatnonzero(final & (late[0] == one) & waits.known[waits.at])
        after = waits.at[rows] + 1
        found[rows] = np.where(follows[waits.at[rows]], np.minimum(late[1][rows], costs[after]), late[1][rows])
    return found


@dataclass(frozen=True)
class _Waits:
    """The steps; of each batch the place of its step; which steps are known, and when each rank first waited; S x R."""

    steps: Ints
    at: Ints
    known: Mask
    first: Ints


@dataclass(frozen=True)
class _Sooner:
    """By how much each batch would be ready sooner, begin sooner after that, and be shorter."""

    ready: Ints
    begun: Ints
    length: Ints


def _groups(column: Ints, group: Ints) -> Ints:
    """The groups of columns; -1 for none."""
    found: Ints = np.where(column >= 0, group[column], -1)
    return found


def _bounded(waits: _Waits, late: tuple[Ints, Ints], gain: Callable[[Ints, bool], Ints]) -> Ints:
    """The lateness of batches, but no more than each step gains without that of the rank that was latest in it.

    Of the others it is enough to know that none gains more than all together would, for which `gain` is asked too.
    """
    last, lateness = late
    own = last == last[_latest(waits.at, lateness)][waits.at]
    most = np.where(own, gain(np.where(own, lateness, 0), False)[waits.at], gain(lateness, True)[waits.at])
    return np.where(waits.known[waits.at], np.minimum(lateness, most), lateness)


def _waits(trace: Trace, table: BatchTable) -> _Waits:
    first, at = numbered_rows(table.step)
    steps = table.step[first]
    members, waited = table.members[first], _first_waits(trace, table, steps)
    known = _known(table, at, members, waited) & (steps >= 0)
    return _Waits(steps, at, known, np.where(members, waited, MISSING))


def _latest(at: Ints, lateness: Ints) -> Ints:
    """The latest batch of each step."""
    order = np.lexsort((lateness, at))
    found: Ints = order[np.flatnonzero(np.append(np.diff(at[order]) != 0, True))]
    return found


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


def _gain(table: BatchTable, at: Ints, sooner: _Sooner, others: Ints, ready: Ints | None = None) -> Ints:
    """By how much earlier each step would be through, not before the others had computed.

    ``ready``: when the last rank had come to each batch; None: when it submitted it.
    """
    ended, then = _on_time(table, at, sooner, table.submit.max(axis=1) if ready is None else ready)
    gain: Ints = np.maximum(0, ended - np.maximum(then, others))
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


def _on_time(table: BatchTable, at: Ints, sooner: _Sooner, ready: Ints) -> tuple[Ints, Ints]:
    """When the last batch of each step ended, and when it would have, had all been sooner."""
    start, steps = table.begin.max(axis=1), int(at.max()) + 1
    length = table.done.max(axis=1) - start
    order = np.lexsort((start, at))
    first = np.searchsorted(at[order], np.arange(steps))
    turn = np.arange(len(order)) - first[at[order]]
    ended, then = np.full(steps, MISSING), np.full(steps, MISSING)
    for number in range(int(turn.max()) + 1):
        rows = order[turn == number]
        place = at[rows]
        behind = start[rows] >= ended[place]
        free = np.where(behind, np.maximum(ready[rows], ended[place]), ready[rows])
        before = ready[rows] - sooner.ready[rows]
        begin = np.where(behind, np.maximum(before, then[place]), before) + start[rows] - free - sooner.begun[rows]
        ended[place] = np.maximum(ended[place], start[rows] + length[rows])
        then[place] = np.maximum(then[place], begin + length[rows] - sooner.length[rows])
    return ended, then
