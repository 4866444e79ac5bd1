"""How efficiently a job ran in parallel: factors that multiply exactly to the measured efficiency.

Notation: n ranks; U_r = time rank r trained without waiting (useful), T = the job's length from its first step's
begin to its last step's end, I = its length had communication and its control cost nothing (replayed: computing
as recorded, a wait ends when all ranks have submitted what it waited for). C = useful time a rank needs for a step
here, C0 = the same in a reference run (with fewer ranks, usually one).

    load balance   = mean(U) / max(U)      all ranks have equally much to do
    serialisation  = max(U) / I            no rank waits for what another has not yet computed
    transfer       = I / T                 communication and its control cost no time
    computation    = C0 / C                computing got no slower by running in parallel
    efficiency     = product of the four = mean(U) / T * C0 / C

All are kept as exact fractions of nanoseconds. Source: M. Wagner et al., "A structured approach to performance
analysis" (2017), the POP project's model for message passing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.batches import MISSING, BatchTable, RankSteps, batch_table, rank_steps
from ringtune.timeline.analysis.intervals import intersection, length, union
from ringtune.timeline.spans import Trace


@dataclass(frozen=True)
class Efficiency:
    """Factors as exact fractions; ``computation`` is None without a reference run."""

    useful_ns: dict[int, int]
    runtime_ns: int
    ideal_ns: int
    steps: int
    load_balance: Fraction
    serialisation: Fraction
    transfer: Fraction
    computation: Fraction | None

    @property
    def parallel(self) -> Fraction:
        """Mean useful time / runtime: the share of the ranks' time that trained."""
        return Fraction(sum(self.useful_ns.values()), len(self.useful_ns) * self.runtime_ns)

    @property
    def efficiency(self) -> Fraction:
        """The measured efficiency, which the factors multiply to."""
        return self.parallel * (self.computation if self.computation is not None else 1)

    def to_json(self) -> dict[str, Any]:
        """Return plain data: factors as numbers, times as they were measured."""
        return {
            "useful_ns": {str(rank): useful for rank, useful in self.useful_ns.items()},
            "runtime_ns": self.runtime_ns,
            "ideal_ns": self.ideal_ns,
            "steps": self.steps,
            "load_balance": float(self.load_balance),
            "serialisation": float(self.serialisation),
            "transfer": float(self.transfer),
            "computation": None if self.computation is None else float(self.computation),
            "parallel": float(self.parallel),
            "efficiency": float(self.efficiency),
        }


def efficiency(trace: Trace, reference: Trace | None = None) -> Efficiency:
    """Return the factors of a trace; with ``reference`` also how computing scaled.

    Raises:
        RingtuneError: The trace does not say when ranks computed and when they waited.
    """
    ranks = [steps for rank in trace.ranks if (steps := rank_steps(trace, rank)) is not None]
    useful = {steps.rank: _useful(steps) for steps in ranks}
    if not any(steps.knows_waiting for steps in ranks) or not max(useful.values()):
        raise RingtuneError(
            "no computing in the trace: efficiency needs steps and waits of every rank; "
            "record with `ringtune run --timeline`, or give PyTorch's traces of all ranks"
        )
    start = min(int(steps.begin[0]) for steps in ranks)
    runtime = max(int(steps.end.max()) for steps in ranks) - start
    ideal = _replayed(ranks, batch_table(trace)) - start
    largest = max(useful.values())
    ideal = min(max(ideal, largest), runtime)  # only clocks that are off could leave these bounds
    return Efficiency(
        useful_ns=useful,
        runtime_ns=runtime,
        ideal_ns=ideal,
        steps=max(len(steps.number) for steps in ranks),
        load_balance=Fraction(sum(useful.values()), len(useful) * largest),
        serialisation=Fraction(largest, ideal),
        transfer=Fraction(ideal, runtime),
        computation=None if reference is None else _useful_per_step(reference) / _useful_per_step(trace),
    )


def _useful(steps: RankSteps) -> int:
    training = union(steps.begin, steps.end)
    return length(training) - length(intersection(training, steps.waits))


def _useful_per_step(trace: Trace) -> Fraction:
    ranks = [steps for rank in trace.ranks if (steps := rank_steps(trace, rank)) is not None]
    total = sum(_useful(steps) for steps in ranks)
    count = sum(len(steps.number) for steps in ranks)
    if not total or not any(int(steps.number[0]) >= 0 for steps in ranks):
        raise RingtuneError("the runs have no steps to compare: computation scaling needs the time of a step in both")
    return Fraction(total, count)


_SUBMIT, _RELEASE = 0, 1


def _replayed(ranks: list[RankSteps], table: BatchTable) -> int:
    """End of the job had every batch been done the moment its last rank submitted it.

    Events run in the order in which they were recorded; ``saved[r]`` is how much earlier rank r is by then.
    """
    columns = {rank: column for column, rank in enumerate(table.ranks)}
    complete = np.full(len(table.ids), MISSING, dtype=np.int64).tolist()
    saved = {steps.rank: 0 for steps in ranks}
    for at, kind, rank, about in heapq.merge(*(_events(steps, table, columns.get(steps.rank)) for steps in ranks)):
        if kind == _SUBMIT:
            complete[about[0]] = max(complete[about[0]], at - saved[rank])
            continue
        begin, *rows = about
        if rows:
            released = max(begin - saved[rank], max(complete[row] for row in rows))
            saved[rank] = max(0, at - released)
    return max(int(steps.end.max()) - saved[steps.rank] for steps in ranks)


def _events(steps: RankSteps, table: BatchTable, column: int | None) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """A rank's submits and releases in the order of time. A release names when its wait began and its batches."""
    found: list[tuple[int, int, int, tuple[int, ...]]] = []
    if column is None:
        return iter(found)
    submit, done = table.submit[:, column], table.done[:, column]
    rows = np.flatnonzero(submit != MISSING)
    found += [(at, _SUBMIT, steps.rank, (row,)) for at, row in zip(submit[rows].tolist(), rows.tolist(), strict=True)]
    order = rows[np.argsort(done[rows], kind="stable")]
    # Waits that found everything done leave nothing: at the end of a step, what it submitted is done in any case.
    moments = np.unique(np.concatenate((steps.syncs, steps.end)))
    bounds = np.concatenate(([0], np.searchsorted(done[order], moments, side="right"))).tolist()
    begins = dict(zip(steps.waits[:, 1].tolist(), steps.waits[:, 0].tolist(), strict=True))
    for number, at in enumerate(moments.tolist()):
        members = order[bounds[number] : bounds[number + 1]].tolist()
        found.append((at, _RELEASE, steps.rank, (begins.get(at, at), *members)))
    found.sort()
    return iter(found)
