"""Stragglers: who made the others wait, how often, by how much, by which cause, and whether that is chance.

Notation: for a batch all ranks ran, lateness of the last rank = its moment minus that of the last but one: what the
job could gain if only that rank were on time. Three moments, three causes:

* ``compute``: the last tensor's submit (from GPU to GPU also: when the GPU had made it what is to be reduced); where
  two ranks are closer than their clocks' error, in a plan, the rank that all others recorded they waited for, and the
  shortest of their waits. What the rank brought along from having been released late by the collective before is not
  its computing: that share is ``carried``, and counts for nobody's cause here.
* ``negotiation``: the moment it heard that the batch may run (agreed); in a plan also that all others waited for a rank
  which had surely submitted before another: its runtime came late. All ranks wait for the last to begin.
* ``network``: the end of its collective, where ranks that began together end apart.

Where two ranks are closer than their clocks' error bounds allow to tell, nobody is last. Batches of a step are not
independent: a rank late in one is late in the next. So a step counts once, with the latest of its batches, and the
tests draw steps: per rank a one-sided binomial test against 1/R (Holm's correction), over all ranks a permutation
test of the lateness.

Horovod's timeline is what rank 0 saw: when its coordinator read that a rank was ready for a tensor. That is ``compute``
(with the message's way); the n-th time of every tensor is step n. The other causes cannot be told from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.errors import RingtuneError
from ringtune.timeline.arrivals import ClockErrors, LastOnes, clock_errors, horovod_ticks, last_ones, tensor_submits
from ringtune.timeline.batches import MISSING, BatchTable, batch_table, moments_released
from ringtune.timeline.chance import binomial_tail, holm, permutation_test
from ringtune.timeline.spans import Ints, Mask, Trace
from ringtune.timeline.staged import device_clock_errors
from ringtune.timeline.vocabulary import Stage

CAUSES = ("compute", "negotiation", "network")

SURE = 0.01
MATERIAL = 0.002
"""A rank is called a straggler when its p-value is below `SURE` and its lateness at least this share of the job."""


@dataclass(frozen=True)
class CauseLateness:
    """One cause on one rank. Steps in which it was last; lateness summed over those steps, and its largest."""

    steps_last: int
    total_ns: int
    largest_ns: int
    p_value: float


@dataclass(frozen=True)
class RankStraggling:
    """One rank. ``carried_ns``: lateness of its submits inherited from being released late; ``verdict``: causes that
    are no chance and matter, strongest first.
    """

    rank: int
    host: str
    causes: dict[str, CauseLateness]
    carried_ns: int
    verdict: tuple[str, ...]


@dataclass(frozen=True)
class HostStraggling:
    """All ranks of a host together: steps in which one of them was last, by cause."""

    host: str
    ranks: int
    steps_last: dict[str, int]
    total_ns: dict[str, int]


@dataclass(frozen=True)
class TensorStraggling:
    """A tensor: how often it was waited for, the rank that was last most often, and the lateness summed."""

    tensor: str
    times: int
    undecided: int
    rank: int
    rank_times: int
    total_ns: int


@dataclass(frozen=True)
class StepStraggling:
    """A step in which somebody was late: the cause with the largest lateness."""

    step: int
    cause: str
    rank: int
    lateness_ns: int


@dataclass(frozen=True)
class Stragglers:
    """Everything; ``chance``: per cause the permutation test's p-value over all ranks (1 when nothing to test)."""

    steps: int
    batches: int
    incomplete: int
    ranks: tuple[RankStraggling, ...]
    hosts: tuple[HostStraggling, ...]
    tensors: tuple[TensorStraggling, ...]
    worst_steps: tuple[StepStraggling, ...]
    chance: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True)
class _Late:
    """Per step (rows) the rank (column) that was last by a cause, -1 for nobody, and by how much."""

    steps: Ints
    column: Ints
    lateness: Ints


@dataclass(frozen=True)
class _Evidence:
    """What the trace says. ``ranks[c]`` is the rank of column c; ``carried`` by column; ``names`` of the tensors."""

    ranks: tuple[int, ...]
    late: dict[str, _Late]
    carried: Ints
    tensors: LastOnes
    names: tuple[str, ...]
    length_ns: int
    steps: int
    batches: int
    incomplete: int


def stragglers(trace: Trace, largest: int = 20, *, permuted: bool = True) -> Stragglers:
    """Find who made the others wait; at most ``largest`` tensors and steps are listed.

    Args:
        trace: Of all ranks.
        largest: How many tensors and steps are listed.
        permuted: Test by permutations too (``chance``), which takes most of the time; else ``chance`` is empty.

    Raises:
        RingtuneError: Neither did two ranks run a batch together, nor are there ticks of Horovod's coordinator.
    """
    everything = batch_table(trace).with_data()
    table = everything.take(everything.complete)
    if len(table.ranks) > 1 and len(table.ids):
        evidence = _of_batches(trace, table, len(everything.ids) - len(table.ids))
    else:
        evidence = _of_ticks(trace)
    tests = {cause: _tests(late, len(evidence.ranks)) for cause, late in evidence.late.items()}
    hosts = {part.rank: part.host for part in trace.parts}
    ranks = [
        _rank((column, rank, hosts.get(rank, "")), evidence.late, tests, evidence.carried)
        for column, rank in enumerate(evidence.ranks)
    ]
    ranks = [replace(rank, verdict=_verdict(rank, evidence.length_ns)) for rank in ranks]
    return Stragglers(
        steps=evidence.steps,
        batches=evidence.batches,
        incomplete=evidence.incomplete,
        ranks=tuple(ranks),
        hosts=tuple(_hosts(ranks)),
        tensors=tuple(_tensors(evidence.tensors, evidence.names)[:largest]),
        worst_steps=tuple(_worst(_steps(evidence.ranks, evidence.late))[:largest]),
        chance={cause: _chance(late, len(evidence.ranks)) for cause, late in evidence.late.items() if permuted},
    )


def late_in_steps(trace: Trace) -> list[StepStraggling]:
    """Return who was last in which step and by which cause, and nothing else: what `stragglers` has of each step.

    For a few steps of a job that goes on. Empty where no two ranks ran a batch together.
    """
    table = batch_table(trace).with_data()
    table = table.take(table.complete)
    if len(table.ranks) < 2 or not len(table.ids):
        return []
    late, _ = _lateness(trace, table, clock_errors(trace))
    return list(_steps(table.ranks, late))


def _lateness(trace: Trace, table: BatchTable, clocks: ClockErrors) -> tuple[dict[str, _Late], Ints]:
    """Who was last in every step, by cause; and the lateness carried over, by column."""
    columns = np.array(table.ranks)
    errors = clocks.between(columns[:, None], columns)
    if table.directly.any():
        bounds = np.array([float(device_clock_errors(trace).get(rank, 0)) for rank in table.ranks])
        errors = errors + bounds[:, None] + bounds
    carried, late = _compute(trace, table, errors)
    found = {
        "compute": _per_step(table.step, *late),
        "negotiation": _per_step(table.step, *_negotiated(table, errors)),
        "network": _per_step(table.step, *_last(table.end, errors)),
    }
    return found, carried


def _of_batches(trace: Trace, table: BatchTable, incomplete: int) -> _Evidence:
    """Three moments of every batch that all ranks ran."""
    clocks, negotiate = clock_errors(trace), trace.spans.of_stage(Stage.NEGOTIATE)
    late, carried = _lateness(trace, table, clocks)
    return _Evidence(
        ranks=table.ranks,
        late=late,
        carried=carried,
        tensors=last_ones(tensor_submits(negotiate), clocks),
        names=negotiate.tensors,
        length_ns=int(table.done.max() - table.submit.min()),
        steps=len(np.unique(table.step)),
        batches=len(table.ids),
        incomplete=incomplete,
    )


def _of_ticks(trace: Trace) -> _Evidence:
    """What Horovod's coordinator saw: who was ready last, nothing else."""
    ticks = horovod_ticks(trace)
    submits = ticks.submits
    last = last_ones(submits, clock_errors(trace))
    if not len(last.rank):
        raise RingtuneError(
            "no batch that two ranks ran together: stragglers are found by comparing ranks; "
            "give the run folder or the parts of all ranks (Horovod's timeline tells who was ready when only of "
            "tensors that its coordinator asks for: record with HOROVOD_CACHE_CAPACITY=0)"
        )
    ranks = np.unique(submits.rank)
    step = last.group // len(ticks.names)
    column = np.where(last.rank >= 0, np.searchsorted(ranks, last.rank), -1)
    spans = trace.spans
    nobody = _Late(*np.empty((3, 0), dtype=np.int64))
    compute = _per_step(step, column, np.where(column >= 0, last.lateness_ns, 0))
    return _Evidence(
        ranks=tuple(ranks.tolist()),
        late={"compute": compute, "negotiation": nobody, "network": nobody},
        carried=np.zeros(len(ranks), dtype=np.int64),
        tensors=last,
        names=ticks.names,
        length_ns=int(max(submits.at_ns.max(), spans.end_ns.max(initial=0)) - submits.at_ns.min()),
        steps=len(np.unique(step)),
        batches=len(last.rank),
        incomplete=len(np.unique(submits.group)) - len(last.rank),
    )


def _last(moments: Ints, errors: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Column of the last rank (-1: too close to tell) and its lateness, row by row."""
    order = np.argsort(moments, axis=1, kind="stable")
    last, second = order[:, -1], order[:, -2]
    rows = np.arange(len(moments))
    lateness = moments[rows, last] - moments[rows, second]
    # From each of the others, not only the last but one: one before it may have a worse clock.
    ahead = moments[rows, last][:, None] - moments > errors[last]
    ahead[rows, last] = True
    sure = ahead.all(axis=1)
    return np.where(sure, last, -1), np.where(sure, lateness, 0)


def _negotiated(table: BatchTable, errors: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Who heard last, or came to a batch of a plan last though others submitted later; nobody where none is shown."""
    last, lateness = _last(table.agreed, errors)
    last, lateness = np.where(table.negotiated, last, -1), np.where(table.negotiated, lateness, 0)
    came_late = _submitted_before(table, errors)
    return np.where(came_late, table.awaited, last), np.where(came_late, table.awaited_ns, lateness)


def _submitted_before(table: BatchTable, errors: NDArray[np.float64]) -> Mask:
    """Batches whose ranks all waited for one that had surely submitted before another: it did not compute longer."""
    rows, latest = np.arange(len(table.ids)), table.submit.argmax(axis=1)
    behind = table.submit[rows, latest] - table.submit[rows, table.awaited]
    found: Mask = (table.awaited >= 0) & (behind > errors[latest, table.awaited])
    return found


def _submitted_last(table: BatchTable, errors: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Who submitted last and by how much: by the clocks, where these cannot tell by what the others recorded."""
    last, lateness = _last(table.submit, errors)
    elsewhere = _submitted_before(table, errors)
    unsure = errors[table.submit.argmax(axis=1)].any(axis=1)
    told = (table.awaited >= 0) & (last < 0) & unsure & ~elsewhere
    last, lateness = np.where(told, table.awaited, last), np.where(told, table.awaited_ns, lateness)
    return np.where(elsewhere, -1, last), np.where(elsewhere, 0, lateness)


def _compute(trace: Trace, table: BatchTable, errors: NDArray[np.float64]) -> tuple[Ints, tuple[Ints, Ints]]:
    """Lateness of submits without what was carried over; and the carried lateness by column."""
    last, lateness = _submitted_last(table, errors)
    released = np.stack([_released(trace, rank, table.submit[:, at]) for at, rank in enumerate(table.ranks)], axis=1)
    rows = np.arange(len(last))
    others = np.where(np.arange(len(table.ranks)) == last[:, None], MISSING, table.submit)
    second = others.argmax(axis=1)
    known = (released[rows, last] != MISSING) & (released[rows, second] != MISSING) & (last >= 0)
    behind = np.where(known, released[rows, last] - released[rows, second], 0)
    behind = np.where(behind > errors[last, second], behind, 0)
    carried = np.clip(behind, 0, lateness)
    own = lateness - carried
    brought = _per_step(table.step, last, carried)
    sums = np.zeros(len(table.ranks), dtype=np.int64)
    np.add.at(sums, brought.column[brought.column >= 0], brought.lateness[brought.column >= 0])
    return sums, (np.where(own > 0, last, -1), own)


def _released(trace: Trace, rank: int, before: Ints) -> Ints:
    """When the rank's last wait before each moment ended."""
    syncs = moments_released(trace, rank)
    place = np.searchsorted(syncs, before, side="right") - 1
    return np.where(place >= 0, syncs[np.maximum(place, 0)] if len(syncs) else MISSING, MISSING)


def _per_step(step: Ints, last: Ints, lateness: Ints) -> _Late:
    """The latest batch of every step; batches of no known step are one round each."""
    rounds = np.where(step < 0, -1 - np.arange(len(last)), step)
    order = np.lexsort((lateness, rounds))
    ends = np.flatnonzero(np.append(np.diff(rounds[order]) != 0, True))
    chosen = order[ends]
    return _Late(step[chosen], last[chosen], lateness[chosen])


def _tests(late: _Late, ranks: int) -> list[float]:
    decided = int((late.column >= 0).sum())
    hits = [int((late.column == column).sum()) for column in range(ranks)]
    return holm([binomial_tail(count, decided, 1 / ranks) if count else 1.0 for count in hits])


def _chance(late: _Late, ranks: int) -> float:
    decided = late.column >= 0
    if not decided.any():
        return 1.0
    rounds = np.zeros((int(decided.sum()), ranks))
    rounds[np.arange(len(rounds)), late.column[decided]] = late.lateness[decided]
    return permutation_test(rounds)


def _rank(
    who: tuple[int, int, str], found: dict[str, _Late], tests: dict[str, list[float]], carried: Ints
) -> RankStraggling:
    column, rank, host = who
    causes = {}
    for cause, late in found.items():
        mine = late.lateness[late.column == column]
        largest = int(mine.max()) if len(mine) else 0
        causes[cause] = CauseLateness(len(mine), int(mine.sum()), largest, tests[cause][column])
    return RankStraggling(rank, host, causes, int(carried[column]), ())


def _verdict(rank: RankStraggling, job_ns: int) -> tuple[str, ...]:
    sure = [
        cause
        for cause, late in rank.causes.items()
        if late.p_value < SURE and late.total_ns > 0 and late.total_ns >= MATERIAL * job_ns
    ]
    return tuple(sorted(sure, key=lambda cause: -rank.causes[cause].total_ns))


def _hosts(ranks: Sequence[RankStraggling]) -> Iterator[HostStraggling]:
    for host in sorted({rank.host for rank in ranks}):
        members = [rank for rank in ranks if rank.host == host]
        yield HostStraggling(
            host,
            len(members),
            {cause: sum(member.causes[cause].steps_last for member in members) for cause in CAUSES},
            {cause: sum(member.causes[cause].total_ns for member in members) for cause in CAUSES},
        )


def _tensors(last: LastOnes, names: tuple[str, ...]) -> list[TensorStraggling]:
    """Tensors by the lateness of their submits, longest first."""
    found = []
    for code in np.unique(last.tensor).tolist():
        mine = last.tensor == code
        ranks, lateness = last.rank[mine], last.lateness_ns[mine]
        decided = ranks >= 0
        who, times = np.unique(ranks[decided], return_counts=True)
        rank, most = (int(who[times.argmax()]), int(times.max())) if len(who) else (-1, 0)
        total = int(lateness[decided].sum())
        found.append(TensorStraggling(names[code], len(ranks), int((~decided).sum()), rank, most, total))
    return sorted(found, key=lambda tensor: (-tensor.total_ns, tensor.tensor))


def _steps(ranks: Sequence[int], found: dict[str, _Late]) -> Iterator[StepStraggling]:
    for cause, late in found.items():
        rows = zip(late.steps.tolist(), late.column.tolist(), late.lateness.tolist(), strict=True)
        for step, column, lateness in rows:
            if column >= 0 and lateness > 0:
                yield StepStraggling(step, cause, ranks[column], lateness)


def _worst(steps: Iterable[StepStraggling]) -> list[StepStraggling]:
    return sorted(steps, key=lambda step: (-step.lateness_ns, step.step, step.cause))
