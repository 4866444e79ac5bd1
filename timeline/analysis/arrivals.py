"""Who arrived last: which rank the others had to wait for.

A tensor can run when every rank of its process set has submitted it; a batch when all its tensors can. For each, the
rank that submitted last is found on the aligned clocks. Lateness = last submit - last but one: what the job would gain
if only that rank were on time. Spread = last - first. Where two ranks are closer than their clocks' error bounds allow
to tell, the arrival is undecided and counts for no rank.

Horovod's timeline has ticks instead: when its coordinator read that a rank was ready. It reads all ranks' messages once
a cycle, rank after rank, so the order within one cycle is that of the ranks' numbers and says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.distinct import distinct, numbered_rows
from ringtune.timeline.spans import Codes, Ints, SpanTable, Trace, once_a_trace
from ringtune.timeline.vocabulary import ARRIVAL, Stage


@dataclass(frozen=True)
class Submits:
    """Submissions as columns; ``group`` numbers what must be complete before it can run."""

    group: Ints
    rank: Ints
    at_ns: Ints
    tensor: Ints
    """Index into the names of the table they came from; of a batch that of its last tensor."""
    process_set: Ints
    """0: of all ranks."""


@dataclass(frozen=True)
class Ticks:
    """Submissions as Horovod's coordinator read them: those of one cycle have the moment of its first tick.

    ``submits.group`` is the tensor plus ``len(names)`` times the number, from 0, of the tensor's submission.
    """

    submits: Submits
    names: tuple[str, ...]


@dataclass(frozen=True)
class RankArrivals:
    """How often a rank was last, and by how much (over tensors: each tensor of each step counts)."""

    rank: int
    tensors_last: int
    batches_last: int
    batch_lateness_ns: int
    """Sum over the batches it was last for: the most the job could gain from it."""
    median_lateness_ns: float
    """Over the tensors it was last for; 0 when for none."""
    largest_lateness_ns: int


@dataclass(frozen=True)
class Arrivals:
    """Arrivals of the job; empty ``ranks`` when fewer than two ranks' submissions are known."""

    tensors: int
    tensors_undecided: int
    batches: int
    batches_undecided: int
    ranks: tuple[RankArrivals, ...]


@dataclass(frozen=True)
class ClockErrors:
    """How far in ns two ranks' clocks may be apart (infinite: not comparable): a row and a column for each rank."""

    ranks: Ints
    table: NDArray[np.float64]

    def between(self, one: Ints, other: Ints) -> NDArray[np.float64]:
        """Bounds between two arrays of ranks, broadcast against each other."""
        found: NDArray[np.float64] = self.table[np.searchsorted(self.ranks, one), np.searchsorted(self.ranks, other)]
        return found


@dataclass(frozen=True)
class LastOnes:
    """The last of each group that all its ranks submitted; rank -1 where undecided."""

    rank: Ints
    at_ns: Ints
    lateness_ns: Ints
    tensor: Ints
    group: Ints


LOOK_NS = 1_000_000
"""Horovod's default cycle: a tick later than this after the one before belongs to another cycle of the coordinator."""


def arrivals(trace: Trace) -> Arrivals:
    """Find who arrived last for every tensor and every batch."""
    errors = clock_errors(trace)
    tensors, by_tensor = _tensor_submits(trace), last_of_tensors(trace)
    if len(distinct(tensors.rank)) < 2:
        tensors = horovod_ticks(trace).submits
        by_tensor = last_ones(tensors, errors)
    by_batch = last_ones(_batch_submits(trace.spans), errors)
    ranks = distinct(tensors.rank).tolist() if len(by_tensor.rank) else []
    return Arrivals(
        tensors=len(by_tensor.rank),
        tensors_undecided=int((by_tensor.rank < 0).sum()),
        batches=len(by_batch.rank),
        batches_undecided=int((by_batch.rank < 0).sum()),
        ranks=tuple(_of_rank(rank, by_tensor, by_batch) for rank in ranks),
    )


def last_ones(submits: Submits, errors: ClockErrors) -> LastOnes:
    """Find the last rank of each group that every rank of its process set submitted."""
    order = _by_group(submits)
    group, rank, at = submits.group[order], submits.rank[order], submits.at_ns[order]
    ends = np.flatnonzero(np.append(np.diff(group) != 0, True)) if len(group) else np.empty(0, dtype=np.int64)
    sizes = np.diff(np.concatenate(([-1], ends)))
    whole = (sizes > 1) & (sizes == _sizes_of_sets(submits)[order][ends])
    ends, sizes = ends[whole], sizes[whole]
    last = np.full(len(ends), -1, dtype=np.int64)
    for size in distinct(sizes).tolist():
        mine = ends[sizes == size]
        # Surely after each of the others: one before the last but one may have a worse clock.
        others = mine[:, None] - np.arange(1, size)
        sure = (at[mine][:, None] - at[others] > errors.between(rank[mine][:, None], rank[others])).all(axis=1)
        last[sizes == size] = np.where(sure, rank[mine], -1)
    return LastOnes(last, at[ends], at[ends] - at[ends - 1], submits.tensor[order][ends], group[ends])


def _by_group(submits: Submits) -> Ints:
    """The order by group, moment and rank; where every rank is in every group, each group is sorted by itself."""
    columns = (submits.rank, submits.at_ns, submits.group)
    ranks = max(1, len(distinct(submits.rank)))
    if len(submits.rank) % ranks:
        return np.lexsort(columns)
    rank, at, group = (column.reshape(-1, ranks) for column in columns)
    in_order = not ((group[1:, 0] <= group[:-1, 0]).any() or (rank[:1, 1:] <= rank[:1, :-1]).any())
    if not in_order or (rank != rank[:1]).any() or (group != group[:, :1]).any():
        return np.lexsort(columns)
    within = np.argsort(at, axis=1, kind="stable")
    return (within + np.arange(0, len(submits.rank), ranks)[:, None]).ravel()


def _sizes_of_sets(submits: Submits) -> Ints:
    """How many ranks the process set of each submission has, as far as they recorded any of it."""
    found = np.full(len(submits.rank), len(distinct(submits.rank)), dtype=np.int64)
    for number in distinct(submits.process_set[submits.process_set != 0]):
        mine = submits.process_set == number
        found[mine] = len(distinct(submits.rank[mine]))
    return found


@once_a_trace
def last_of_tensors(trace: Trace) -> LastOnes:
    """Find the last rank of every tensor of every batch."""
    return last_ones(_tensor_submits(trace), clock_errors(trace))


@once_a_trace
def _tensor_submits(trace: Trace) -> Submits:
    """One submission per rank, tensor and batch; tensors without a batch are matched by their order."""
    spans = trace.spans
    rows = np.flatnonzero(spans.in_stage(Stage.NEGOTIATE))
    turn = spans.batch[rows]
    alone = np.flatnonzero(turn <= 0)
    about = rows[alone]
    turn[alone] = -1 - _occurrence(spans.rank[about], spans.tensor[about], spans.begin_ns[about])
    return _first_of_each(numbered_rows(spans.tensor[rows], turn)[1], spans, rows)


def _batch_submits(spans: SpanTable) -> Submits:
    """One submission per rank and batch: its last tensor's."""
    rows = np.flatnonzero(spans.in_stage(Stage.NEGOTIATE) & (spans.batch > 0))
    first, place = numbered_rows(spans.batch[rows], spans.rank[rows])
    begin = spans.begin_ns[rows]
    latest = begin[first]
    np.maximum.at(latest, place, begin)
    rows = rows[begin == latest[place]]
    return _first_of_each(spans.batch[rows], spans, rows)


def horovod_ticks(trace: Trace) -> Ticks:
    """Return the ticks of a timeline of Horovod's; none for other traces."""
    found = sorted(trace.instants_named(ARRIVAL), key=lambda tick: tick.at_ns)
    names: dict[str, int] = {}
    tensor = np.array([names.setdefault(str(tick.args.get("tensor")), len(names)) for tick in found], dtype=np.int64)
    rank = np.array([tick.rank for tick in found], dtype=np.int64)
    at = np.array([tick.at_ns for tick in found], dtype=np.int64)
    group = tensor + len(names) * _occurrence(rank, tensor, at)
    marks = np.sort(trace.spans.of_stage(Stage.CYCLE).begin_ns)
    first, _ = numbered_rows(group, rank)
    looks, of_all = _look_begins(at, rank, marks)[first], np.zeros_like(first)
    return Ticks(Submits(group[first], rank[first], looks, tensor[first], of_all), tuple(names))


def _look_begins(at_ns: Ints, rank: Ints, marks: Ints) -> Ints:
    """The first tick of the cycle to which each tick (in order) belongs; marks of cycles separate them if recorded."""
    if not len(at_ns):
        return at_ns
    apart = np.diff(np.searchsorted(marks, at_ns, side="right")) > 0 if len(marks) else np.diff(at_ns) > LOOK_NS
    fresh = np.concatenate(([True], apart | (np.diff(rank) < 0)))
    begins: Ints = at_ns[fresh][np.cumsum(fresh) - 1]
    return begins


def _occurrence(rank: Ints | Codes, tensor: Ints | Codes, at_ns: Ints) -> Ints:
    """The number of each submission among those of its tensor by its rank, from 0."""
    order = np.lexsort((at_ns, tensor, rank))
    key = numbered_rows(rank, tensor)[1][order]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(key) != 0))) if len(key) else np.empty(0, np.int64)
    runs = np.diff(np.append(starts, len(key)))
    turn = np.empty(len(key), dtype=np.int64)
    turn[order] = np.arange(len(key)) - np.repeat(starts, runs)
    return turn


def _first_of_each(group: Ints, spans: SpanTable, rows: Ints) -> Submits:
    """Keep the first of these rows of each group and rank, in the order given."""
    first, _ = numbered_rows(group, spans.rank[rows])
    rank, at, tensor = spans.rank[rows[first]], spans.begin_ns[rows[first]], spans.tensor[rows[first]]
    sets = spans.process_sets(rows[first])
    return Submits(group[first], rank.astype(np.int64), at, tensor.astype(np.int64), sets)


@once_a_trace
def clock_errors(trace: Trace) -> ClockErrors:
    """Clock error between any two ranks: none within a host, the sum of both bounds otherwise."""
    of_rank = {part.rank: part for part in trace.parts}
    parts = [of_rank.get(rank) for rank in trace.ranks]
    bounds = np.array([np.inf if part and part.error_ns is None else (part.error_ns if part else 0) for part in parts])
    hosts = np.array([part.host if part else "" for part in parts], dtype=np.str_)
    same = hosts[:, None] == hosts[None, :]
    return ClockErrors(np.array(trace.ranks, dtype=np.int64), np.where(same, 0.0, bounds[:, None] + bounds[None, :]))


def _of_rank(rank: int, by_tensor: LastOnes, by_batch: LastOnes) -> RankArrivals:
    tensors, batches = by_tensor.lateness_ns[by_tensor.rank == rank], by_batch.lateness_ns[by_batch.rank == rank]
    return RankArrivals(
        rank=rank,
        tensors_last=len(tensors),
        batches_last=len(batches),
        batch_lateness_ns=int(batches.sum()),
        median_lateness_ns=float(np.median(tensors)) if len(tensors) else 0.0,
        largest_lateness_ns=int(tensors.max()) if len(tensors) else 0,
    )
