"""Who was last in every step, by cause, and by how much.

Notation: for a batch that all its ranks ran (all of the job, or a group), lateness of the last rank = its moment minus
that of the last but one: what the job could gain if only that rank were on time. Three moments, three causes:

* ``compute``: the last tensor's submit (from GPU to GPU also: when the GPU had finished the tensor); where two ranks
  are closer than their clocks' error, under a step schedule, the rank that all others recorded they waited for, and the
  shortest of their waits. What the rank carried over from having been released late by the collective before is not its
  computing: that share is ``carried``, and counts for no cause here.
* ``negotiation``: the moment at which the rank learned that the batch may run (agreed); under a step schedule also that
  all others waited for a rank which had surely submitted before another: its runtime came late. All ranks wait for the
  last to begin.
* ``network``: the end of its collective, where ranks that began together end apart.

Where two ranks are closer than their clocks' error bounds, no rank is last.

Horovod's timeline is what rank 0 saw: when its coordinator read that a rank was ready for a tensor. That is ``compute``
(with the message's way); the n-th time of every tensor is step n. The other causes cannot be derived from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.arrivals import (
    ClockErrors,
    LastOnes,
    clock_errors,
    horovod_ticks,
    last_of_tensors,
    last_ones,
)
from ringtune.timeline.analysis.batches import MISSING, BatchTable, errors_between, moments_released
from ringtune.timeline.analysis.hidden import gained
from ringtune.timeline.analysis.intervals import union
from ringtune.timeline.analysis.messages import messages
from ringtune.timeline.analysis.peer_wait import peer_waits
from ringtune.timeline.distinct import distinct
from ringtune.timeline.spans import Ints, Mask, Trace
from ringtune.timeline.units import time_text
from ringtune.timeline.vocabulary import Stage


@dataclass(frozen=True)
class Late:
    """Per step (rows) the rank (column) that was last by a cause, -1 for none, at which moment, and by how much.

    ``probability``: of each of the ranks that ran the batch to be last, were they equal. ``unsure_ns``: clocks are off
    by up to so much, so where no rank was last, none was by more; 0 where that is not the reason.
    """

    steps: Ints
    column: Ints
    at_ns: Ints
    lateness: Ints
    probability: NDArray[np.float64]
    unsure_ns: float = 0.0

    def time(self, rows: Ints | Mask) -> Ints:
        """Return when the others waited for the last rank in these rows, as a set of time."""
        return union(self.at_ns[rows] - self.lateness[rows], self.at_ns[rows])


@dataclass(frozen=True)
class Evidence:
    """What the trace says. ``ranks[c]`` is the rank of column c; ``carried`` by column; ``names`` of the tensors."""

    ranks: tuple[int, ...]
    late: dict[str, Late]
    carried: Ints
    tensors: LastOnes
    names: tuple[str, ...]
    length_ns: int
    steps: int
    batches: int
    incomplete: int


def lateness_by_cause(trace: Trace, table: BatchTable, clocks: ClockErrors) -> tuple[dict[str, Late], Ints]:
    """Who was last in every step, by cause; and the lateness carried over, by column."""
    errors = errors_between(trace, table, clocks)
    carried, late = _compute(trace, table, errors)
    probability = 1 / table.members.sum(axis=1)
    found = {
        "compute": replace(
            _per_step(_step_of_late(trace, table, *late), table.submit, *late, probability),
            unsure_ns=float(errors.max()),
        ),
        "negotiation": _per_step(table.step, table.agreed, *_negotiated(table, errors), probability),
        "network": _per_step(table.step, table.end, *_last(table.end, errors), probability),
    }
    return found, carried


def lateness_of_group(trace: Trace, table: BatchTable, clocks: ClockErrors, inside: Mask) -> dict[str, Late]:
    """Who was last in every step, some ranks together (column 0) or one of the others (1), by cause.

    Args:
        trace: Of all ranks.
        table: Its batches.
        clocks: Their errors.
        inside: Which columns of the table are the group's.
    """
    errors, group = errors_between(trace, table, clocks), np.where(inside, 0, 1)
    both = (table.members & inside).any(axis=1) & (table.members & ~inside).any(axis=1)
    probability = np.full(len(table.ids), float(inside.mean()))
    rows = {
        "compute": (table.submit, _compute(trace, table, errors, group)[1]),
        "network": (table.end, _last(table.end, errors, group)),
    }
    found = {}
    for cause, (moments, (last, lateness)) in rows.items():
        last, lateness = np.where(both, last, -1), np.where(both, lateness, 0)
        step = _step_of_late(trace, table, last, lateness) if cause == "compute" else table.step
        late = _per_step(step, moments, last, lateness, probability)
        found[cause] = replace(late, column=np.where(late.column >= 0, group[late.column], -1))
    return found


def of_batches(trace: Trace, table: BatchTable, incomplete: int, *, tensors: bool = True) -> Evidence:
    """Three moments of every batch that all its ranks ran, and who was last for each of their tensors if asked."""
    none = np.empty(0, dtype=np.int64)
    late, carried = lateness_by_cause(trace, table, clock_errors(trace))
    return Evidence(
        ranks=table.ranks,
        late=late,
        carried=carried,
        tensors=last_of_tensors(trace) if tensors else LastOnes(none, none, none, none, none),
        names=trace.spans.tensors,
        length_ns=int(table.done.max() - table.submit[table.members].min()),
        steps=len(distinct(table.step)),
        batches=len(table.ids),
        incomplete=incomplete,
    )


def _why_nothing_is_compared(trace: Trace) -> str:
    if len(messages(trace.spans).send):
        most = max(peer_waits(trace.spans), key=lambda one: one.total_ns, default=None)
        waited = f": rank {most.rank} waited for rank {most.peer}, {time_text(most.total_ns)} in all" if most else ""
        return (
            f"these ranks run nothing all together, they send to each other{waited}; ringtune timeline summary says "
            "who waited for whom"
        )
    return (
        "no batch that two ranks ran together: stragglers are found by comparing ranks; "
        "give the run folder or the parts of all ranks (Horovod's timeline has arrivals only of "
        "tensors that its coordinator asks for: record with HOROVOD_CACHE_CAPACITY=0)"
    )


def of_ticks(trace: Trace) -> Evidence:
    """What Horovod's coordinator saw: who was ready last, nothing else."""
    if {part.size for part in trace.parts} == {1} and trace.source != "horovod":  # rank 0 wrote that of all
        raise RingtuneError("the job has one rank, and nobody waits for it: see ringtune timeline summary")
    ticks = horovod_ticks(trace)
    submits = ticks.submits
    last = last_ones(submits, clock_errors(trace))
    if not len(last.rank):
        raise RingtuneError(_why_nothing_is_compared(trace))
    ranks = distinct(submits.rank)
    step = last.group // len(ticks.names)
    column = np.where(last.rank >= 0, np.searchsorted(ranks, last.rank), -1)
    spans = trace.spans
    none = np.empty(0, dtype=np.int64)
    nobody = Late(none, none, none, none, none.astype(np.float64))
    lateness, moments = np.where(column >= 0, last.lateness_ns, 0), np.tile(last.at_ns[:, None], len(ranks))
    compute = _per_step(step, moments, column, lateness, np.full(len(step), 1 / len(ranks)))
    return Evidence(
        ranks=tuple(ranks.tolist()),
        late={"compute": compute, "negotiation": nobody, "network": nobody},
        carried=np.zeros(len(ranks), dtype=np.int64),
        tensors=last,
        names=ticks.names,
        length_ns=int(max(submits.at_ns.max(), spans.end_ns.max(initial=0)) - submits.at_ns.min()),
        steps=len(distinct(step)),
        batches=len(last.rank),
        incomplete=len(distinct(submits.group)) - len(last.rank),
    )


def _last(moments: Ints, errors: NDArray[np.float64], group: Ints | None = None) -> tuple[Ints, Ints]:
    """Column of the last rank (-1: too close to tell) and its lateness, row by row; against other groups if given."""
    last, rows = np.argsort(moments, axis=1, kind="stable")[:, -1], np.arange(len(moments))
    own = _own(last, moments.shape[1], group)
    lateness = moments[rows, last] - np.where(own, MISSING, moments).max(axis=1)
    # From each of the others, not only the last but one: one before it may have a worse clock.
    ahead = (moments[rows, last][:, None] - moments > errors[last]) | own
    sure = ahead.all(axis=1)
    return np.where(sure, last, -1), np.where(sure, lateness, 0)


def _own(last: Ints, columns: int, group: Ints | None) -> Mask:
    """The last rank's own columns, row by row: those of its group, or itself."""
    group = np.arange(columns) if group is None else group
    found: Mask = group == group[last][:, None]
    return found


def _negotiated(table: BatchTable, errors: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """The rank that learned last, or reached a batch of a schedule last though others submitted later; -1 for none."""
    last, lateness = _last(table.agreed, errors)
    # Where no rank took any time to agree, nothing was negotiated: another library carried the batch.
    asked = table.negotiated & (table.agreed > table.submit).any(axis=1)
    last, lateness = np.where(asked, last, -1), np.where(asked, lateness, 0)
    came_late = _submitted_before(table, errors)
    return np.where(came_late, table.awaited_peer, last), np.where(came_late, table.peer_wait_ns, lateness)


def _submitted_before(table: BatchTable, errors: NDArray[np.float64]) -> Mask:
    """Batches whose ranks all waited for one that had surely submitted before another: it did not compute longer."""
    rows, latest = np.arange(len(table.ids)), table.submit.argmax(axis=1)
    behind = table.submit[rows, latest] - table.submit[rows, table.awaited_peer]
    found: Mask = (table.awaited_peer >= 0) & (behind > errors[latest, table.awaited_peer])
    return found


def _submitted_last(table: BatchTable, errors: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """The rank that submitted last and by how much: by the clocks, else by what the other ranks recorded."""
    last, lateness = _last(table.submit, errors)
    elsewhere = _submitted_before(table, errors)
    unsure = errors[table.submit.argmax(axis=1)].any(axis=1)
    by_record = (table.awaited_peer >= 0) & (last < 0) & unsure & ~elsewhere
    last, lateness = np.where(by_record, table.awaited_peer, last), np.where(by_record, table.peer_wait_ns, lateness)
    return np.where(elsewhere, -1, last), np.where(elsewhere, 0, lateness)


def _compute(
    trace: Trace, table: BatchTable, errors: NDArray[np.float64], group: Ints | None = None
) -> tuple[Ints, tuple[Ints, Ints]]:
    """Lateness of submits without what was carried over; and the carried lateness by column."""
    last, lateness = _submitted_last(table, errors) if group is None else _last(table.submit, errors, group)
    released = np.stack([_released(trace, rank, table.submit[:, at]) for at, rank in enumerate(table.ranks)], axis=1)
    rows = np.arange(len(last))
    others = np.where(_own(last, len(table.ranks), group), MISSING, table.submit)
    second = others.argmax(axis=1)
    known = (released[rows, last] != MISSING) & (released[rows, second] != MISSING) & (last >= 0)
    behind = np.where(known, released[rows, last] - released[rows, second], 0)
    behind = np.where(behind > errors[last, second], behind, 0)
    carried = np.clip(behind, 0, lateness)
    own = gained(trace, table, last, lateness - carried, group)
    brought = _per_step(table.step, table.submit, last, carried, np.zeros(len(last)))
    sums = np.zeros(len(table.ranks), dtype=np.int64)
    np.add.at(sums, brought.column[brought.column >= 0], brought.lateness[brought.column >= 0])
    return sums, (np.where(own > 0, last, -1), own)


def _step_of_late(trace: Trace, table: BatchTable, last: Ints, lateness: Ints) -> Ints:
    """The step in which the last rank of each batch was when it became late: a pause between submitting a step's last
    gradients and its end delays the first batch of the step after.
    """
    steps, found = trace.spans.of_stage(Stage.STEP), table.step.copy()
    for column, rank in enumerate(table.ranks):
        rows, own = np.flatnonzero(last == column), steps.of_rank(rank)
        own = own.take(np.argsort(own.begin_ns, kind="stable"))
        middle = table.submit[rows, column] - lateness[rows] // 2
        place = np.searchsorted(own.begin_ns, middle, side="right") - 1
        known = place >= 0
        rows, middle, place = rows[known], middle[known], place[known]
        within = middle < own.end_ns[place]
        found[rows[within]] = own.step[place[within]]
    return found


def _released(trace: Trace, rank: int, before: Ints) -> Ints:
    """When the rank's last wait before each moment ended."""
    syncs = moments_released(trace, rank)
    place = np.searchsorted(syncs, before, side="right") - 1
    return np.where(place >= 0, syncs[np.maximum(place, 0)] if len(syncs) else MISSING, MISSING)


def _per_step(step: Ints, moments: Ints, last: Ints, lateness: Ints, probability: NDArray[np.float64]) -> Late:
    """The latest batch of every step, with the last rank's moment; batches of no known step are one round each."""
    rounds = np.where(step < 0, -1 - np.arange(len(last)), step)
    order = np.lexsort((lateness, rounds))
    ends = np.flatnonzero(np.append(np.diff(rounds[order]) != 0, True))
    chosen = order[ends]
    return Late(step[chosen], last[chosen], moments[chosen, last[chosen]], lateness[chosen], probability[chosen])
