"""Batches over all ranks as matrices: when each rank submitted, agreed, began and ended each batch.

Notation: B batches, R ranks; every matrix is B x R, int64 ns, `MISSING` where a rank recorded nothing. Per batch and
rank: submit = its last tensor's submission; agreed = its negotiation's end; start = its last tensor left the queue;
begin, end = its collective; done = the last tensor copied out (or end). From GPU to GPU begin and end are by the GPU's
clock, and start is when the host launched it. Where a trace records no negotiation, submit, agreed and start are begin.
A step schedule has no negotiation; its batches have an `await` span that names the peer waited for, which is known
without any clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.analysis.arrivals import ClockErrors
from ringtune.timeline.analysis.intervals import difference, union
from ringtune.timeline.analysis.staged import device_clock_errors, waiting
from ringtune.timeline.distinct import distinct, distinct_numbers, numbered_rows, places_in
from ringtune.timeline.spans import UNKNOWN, Codes, Ints, Mask, SpanTable, Trace, once_a_trace
from ringtune.timeline.vocabulary import FOREIGN_BATCHES, GENERATION, GROUP_BATCHES, RING_PREFIX, Stage

MISSING = -(2**62)

_BETWEEN_TWO = re.compile(rf"(?:^{RING_PREFIX}|^\w+:)(?:send|recv)\b", re.IGNORECASE)
"""Names of sends and receives, of ringtune's and of PyTorch's profiler."""

_KNOWS_WAITING = np.zeros(256, dtype=np.bool_)
_KNOWS_WAITING[[Stage.WAIT, Stage.NEGOTIATE, Stage.QUEUE]] = True
"""Spans of these stages show that the recorder knows waiting: a rank without `wait` spans did not wait."""


@dataclass(frozen=True)
class BatchTable:
    """Batches in the order of their ids; ``ranks[r]`` is the rank of column r, ``label`` an index into ``labels``."""

    ids: Ints
    ranks: tuple[int, ...]
    members: Mask
    """Which ranks a batch is of: those that recorded any of its process set or group; B x R."""
    submit: Ints
    agreed: Ints
    start: Ints
    begin: Ints
    end: Ints
    done: Ints
    ready: Ints
    """When a GPU had computed the last tensor, of batches from GPU to GPU; else `MISSING`."""
    packed: Ints
    """When a GPU began to pack it, of batches from GPU to GPU that were packed; else its begin."""
    step: Ints
    label: Codes
    bytes: Ints
    negotiated: Mask
    """The trace says when ranks submitted and agreed."""
    scheduled: Mask
    """Whether it ran by a step schedule: a rank comes to it when it is through with the batch before."""
    awaited_peer: Codes
    """Column of the rank that all others waited for and name, -1 where they do not."""
    peer_wait_ns: Ints
    """How much earlier the batch could have begun if only that rank had been on time: the shortest of these waits."""
    labels: tuple[str, ...]

    def last_submits(self) -> tuple[Codes, Ints]:
        """Per batch: column of the rank whose submission all waited for, and the latest submission of the others."""
        if not self.submit.size:
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        last = np.where(self.awaited_peer >= 0, self.awaited_peer, self.submit.argmax(axis=1))
        others = self.submit.copy()
        others[np.arange(len(others)), last] = MISSING
        return last.astype(np.int32), others.max(axis=1)

    @property
    def complete(self) -> Mask:
        """Batches that every rank recorded."""
        found: Mask = (self.begin != MISSING).all(axis=1)
        return found

    @property
    def whole(self) -> Mask:
        """Batches of two ranks or more that all their ranks recorded, be they all of the job or a group."""
        found: Mask = ((self.begin != MISSING) | ~self.members).all(axis=1) & (self.members.sum(axis=1) > 1)
        return found

    @property
    def directly(self) -> Mask:
        """Batches that went from GPU to GPU."""
        found: Mask = (self.ready != MISSING).any(axis=1)
        return found

    def with_data(self) -> BatchTable:
        """Return the batches with a tensor's submission moved to the moment at which a GPU had computed it.

        The peer that the ranks waited for when they agreed is dropped where a GPU was later than that.
        """
        late = self.directly & (self.ready.max(axis=1, initial=MISSING) > self.start.max(axis=1, initial=MISSING))
        return replace(
            self,
            submit=np.maximum(self.submit, self.ready),
            agreed=np.maximum(self.agreed, self.ready),
            awaited_peer=np.where(late, -1, self.awaited_peer).astype(np.int32),
        )

    def take(self, chosen: Mask) -> BatchTable:
        """Return some of the batches."""
        rows = (field.name for field in fields(self) if field.name not in ("ranks", "labels"))
        return replace(self, **{name: getattr(self, name)[chosen] for name in rows})


def numbered(spans: SpanTable) -> SpanTable:
    """Give collectives without a batch one: the n-th of its name in its step on each rank is the same batch.

    Other tools do not number batches; equal ranks run equal collectives in equal order. A send is no collective.
    """
    between_two = np.array([_BETWEEN_TWO.search(name) is not None for name in spans.names], dtype=np.bool_)
    where = np.flatnonzero(spans.in_stage(Stage.COMMUNICATE))
    where = where[(spans.batch[where] == 0) & ~between_two[spans.name[where]]]
    if not len(where) or np.any(spans.batch[spans.in_stage(Stage.COMMUNICATE)] > 0):
        return spans
    order = np.lexsort((spans.begin_ns[where], spans.name[where], spans.step[where], spans.rank[where]))
    where = where[order]
    keys = np.stack((spans.rank[where], spans.step[where], spans.name[where]))
    fresh = np.concatenate(([True], np.any(np.diff(keys, axis=1) != 0, axis=0)))
    starts = np.flatnonzero(fresh)
    turn = np.arange(len(where)) - np.repeat(starts, np.diff(np.append(starts, len(where))))
    _, number = numbered_rows(keys[1], keys[2], turn)
    batch = spans.batch.copy()
    batch[where] = number + 1
    return replace(spans, batch=batch)


@once_a_trace
def batch_table(trace: Trace) -> BatchTable:
    """Return the trace's batches; empty when it holds no collectives."""
    spans = numbered(trace.spans)
    runs = spans.take(spans.in_stage(Stage.COMMUNICATE) & (spans.batch > 0))
    first, row = numbered_rows(runs.batch)
    ids = runs.batch[first]
    ranks, column = distinct_numbers(runs.rank)
    shape = (len(ids), len(ranks))
    begin = -_latest(shape, row, column, -runs.begin_ns)
    begin[begin == -MISSING] = MISSING
    end = _latest(shape, row, column, runs.end_ns)
    about = (ids, ranks, shape)
    submit, agreed = _of_stage(spans, Stage.NEGOTIATE, about, "begin_ns", "end_ns")
    (start,) = _of_stage(spans, Stage.QUEUE, about, "end_ns")
    (out,) = _of_stage(spans, Stage.COPY_OUT, about, "end_ns")
    done = np.maximum(out, end)
    unheard = submit == MISSING
    members = _members(runs.process_sets()[first], begin != MISSING) & _there(trace, ids, ranks)
    awaited_peer, peer_wait_ns = _awaited_peers(spans, about, begin, members)
    (ready,) = _of_stage(spans, Stage.DEVICE_QUEUE, about, "begin_ns")
    copied = ready
    if (ready != MISSING).any():  # one span where it is packed on a GPU
        (copied,) = _of_stage(spans, Stage.COPY_IN, about, "begin_ns")
    return BatchTable(
        ids=ids,
        ranks=tuple(ranks.tolist()),
        members=members,
        submit=np.where(unheard, begin, submit),
        agreed=np.where(unheard, begin, agreed),
        start=np.where(start == MISSING, begin, start),
        begin=begin,
        end=end,
        done=np.where(end == MISSING, MISSING, done),
        ready=ready,
        packed=np.where((ready == MISSING) | (copied == MISSING), begin, copied),
        step=runs.step[first],
        label=np.where(runs.tensor[first] > 0, runs.tensor[first], -1 - runs.name[first]).astype(np.int32),
        bytes=runs.bytes[first],
        scheduled=np.bincount(row[runs.fact("step_schedule") == 1], minlength=len(ids)) > 0,
        negotiated=~unheard.all(axis=1) if len(ranks) else np.zeros(len(ids), dtype=np.bool_),
        awaited_peer=awaited_peer,
        peer_wait_ns=peer_wait_ns,
        labels=(*spans.tensors, *reversed(spans.names)),  # -1 - name counts from the end
    )


def errors_between(trace: Trace, table: BatchTable, clocks: ClockErrors) -> NDArray[np.float64]:
    """Return how far the moments of two ranks' batches may be off against each other, by columns of the table."""
    ranks = np.array(table.ranks)
    errors = clocks.between(ranks[:, None], ranks)
    if table.directly.any():
        of_devices = device_clock_errors(trace)
        bounds = np.array([float(of_devices.get(rank, 0)) for rank in table.ranks])
        errors = errors + bounds[:, None] + bounds
    return errors


def _members(sets: Ints, recorded: Mask) -> Mask:
    """Which ranks each batch is of, by the number of its process set: 0 is all ranks."""
    found = np.ones_like(recorded)
    for number in distinct(sets[sets != 0]):
        found[sets == number] = recorded[sets == number].any(axis=0)
    return found


def _there(trace: Trace, ids: Ints, ranks: Ints) -> Mask:
    """Which ranks an elastic job had when each batch ran; all of a job with fixed ranks."""
    found = np.ones((len(ids), len(ranks)), dtype=np.bool_)
    # Batches of step schedules have numbers of their own, counted on in the same way; those of groups do not say when.
    number = np.where(ids >= FOREIGN_BATCHES.stop, ids - FOREIGN_BATCHES.stop, ids)
    dated = number < GROUP_BATCHES
    for instant in sorted(trace.instants_named(GENERATION), key=lambda one: one.args.get("first_batch", 0)):
        at, there = instant.args.get("first_batch"), instant.args.get("ranks")
        if isinstance(at, int) and isinstance(there, list):
            found[dated & (number > at)] = np.isin(ranks, there)
    return found


def _latest(shape: tuple[int, int], row: Ints, column: Ints, values: Ints) -> Ints:
    found = np.full(shape[0] * shape[1], MISSING, dtype=np.int64)
    np.maximum.at(found, row * shape[1] + column, values)
    return found.reshape(shape)


def _of_stage(spans: SpanTable, stage: Stage, about: tuple[Ints, Ints, tuple[int, int]], *moments: str) -> list[Ints]:
    """Latest of these moments of a stage per batch and rank."""
    row, column, chosen = _places(spans, stage, about)
    return [_latest(about[2], row, column, getattr(spans, moment)[chosen]) for moment in moments]


def _awaited_peers(
    spans: SpanTable, about: tuple[Ints, Ints, tuple[int, int]], begin: Ints, members: Mask
) -> tuple[Codes, Ints]:
    """The rank that all others of a batch waited for before it began; ranks that waited within it had begun."""
    _, ranks, shape = about
    row, column, chosen = _places(spans, Stage.AWAIT, about)
    peer, end = spans.fact("peer")[chosen], spans.end_ns[chosen]
    peers = np.minimum(np.searchsorted(ranks, peer), max(0, len(ranks) - 1))
    if len(chosen):
        order = np.flatnonzero((ranks[peers] == peer) & (end <= begin[row, column]))
        order = order[np.argsort(end[order], kind="stable")]  # of several on a rank the last one stays
        row, column, peers, chosen = row[order], column[order], peers[order], chosen[order]
    named = np.full(shape, -1, dtype=np.int32)
    length = np.full(shape, np.iinfo(np.int64).max, dtype=np.int64)
    named[row, column] = peers
    length[row, column] = spans.end_ns[chosen] - spans.begin_ns[chosen]
    whom = named.max(axis=1, initial=-1)
    others = np.arange(shape[1]) != whom[:, None]
    agreed = (whom >= 0) & np.where(others, (named == whom[:, None]) | ~members, named < 0).all(axis=1)
    return np.where(agreed, whom, -1).astype(np.int32), np.where(agreed, length.min(axis=1, initial=2**62), 0)


def _places(spans: SpanTable, stage: Stage, about: tuple[Ints, Ints, tuple[int, int]]) -> tuple[Ints, Ints, Ints]:
    """Row and column in the table of batches of a stage's spans that have one, and which spans these are."""
    ids, ranks, _ = about
    chosen = np.flatnonzero(spans.in_stage(stage))
    chosen = chosen[spans.batch[chosen] > 0]
    if not len(ids) or not len(chosen):
        nowhere = np.empty(0, dtype=np.int64)
        return nowhere, nowhere, nowhere
    row, column = places_in(ids, spans.batch[chosen]), places_in(ranks, spans.rank[chosen])
    known = (row >= 0) & (column >= 0)
    return (row, column, chosen) if known.all() else (row[known], column[known], chosen[known])


@dataclass(frozen=True)
class RankSteps:
    """One rank's training: its steps (sorted, a whole trace without steps is one) and when it waited.

    ``waits`` are disjoint sorted intervals; ``syncs`` all moments at which a wait ended, also waits of no length.
    """

    rank: int
    number: Ints
    begin: Ints
    end: Ints
    waits: Ints
    syncs: Ints
    knows_waiting: bool
    """Waits are known: they were recorded, or the trace says where steps began and ended."""


@once_a_trace
def rank_steps(trace: Trace, rank: int) -> RankSteps | None:
    """Return a rank's steps and waits; None when it recorded nothing.

    Other tools do not record waits: there, communication that no other work of the device overlaps is waiting; where a
    trace knows no device, that no operator of PyTorch's on the CPU overlaps.
    """
    spans = trace.spans.of_rank(rank)
    if not len(spans):
        return None
    steps = spans.of_stage(Stage.STEP)
    steps = steps.take(np.argsort(steps.begin_ns, kind="stable"))
    number, begin, end = steps.step, steps.begin_ns, steps.end_ns
    if not len(steps):
        number = np.array([UNKNOWN], dtype=np.int64)
        begin, end = spans.begin_ns.min(keepdims=True), spans.end_ns.max(keepdims=True)
    waits, syncs, waited = _waits(spans)
    return RankSteps(rank, number, begin, end, waits, syncs, waited or len(steps) > 0)


def moments_released(trace: Trace, rank: int) -> Ints:
    """Return all moments at which a wait of the rank ended, sorted: `RankSteps.syncs` alone."""
    spans = trace.spans.of_rank(rank)
    return np.unique(waiting(spans).end_ns) if _knows_waiting(spans) else _waits(spans)[1]


def _knows_waiting(spans: SpanTable) -> bool:
    return bool(_KNOWS_WAITING[spans.stage].any())


def _waits(spans: SpanTable) -> tuple[Ints, Ints, bool]:
    """A rank's waits, all moments at which one ended, and whether it recorded any."""
    wait = waiting(spans)
    if _knows_waiting(spans):
        waits, syncs = union(wait.begin_ns, wait.end_ns), np.unique(wait.end_ns)
    else:
        moving, busy = spans.of_stage(Stage.COMMUNICATE), spans.of_stage(Stage.KERNEL)
        if not len(busy):  # a profile of the CPU alone: PyTorch's operators compute, what waits has other names
            busy = spans.take(spans.name_mask("aten::"))
        waits = difference(union(moving.begin_ns, moving.end_ns), union(busy.begin_ns, busy.end_ns))
        syncs = waits[:, 1]
    return waits, syncs, len(wait) > 0
