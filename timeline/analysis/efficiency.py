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

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.batches import MISSING, BatchTable, RankSteps, batch_table, rank_steps
from ringtune.timeline.analysis.intervals import intersection, length, union
from ringtune.timeline.spans import Ints, Trace


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
    complete = np.full(len(table.ids), MISSING, dtype=np.int64).tolist()
    saved = dict.fromkeys((steps.rank for steps in ranks), 0)
    events, rows = np.empty((6, 0), dtype=np.int64), np.empty(0, dtype=np.int64)
    for steps in ranks:
        if steps.rank in table.ranks:
            found, of = _events(steps, table, table.ranks.index(steps.rank))
            found[4] += len(rows)
            events, rows = np.concatenate((events, found), axis=1), np.append(rows, of)
    batches = rows.tolist()
    for at, kind, rank, begin, first, count in events[:, np.lexsort(events[2::-1])].T.tolist():
        if kind == _SUBMIT:
            complete[batches[first]] = max(complete[batches[first]], at - saved[rank])
        else:
            released = max(begin - saved[rank], *(complete[row] for row in batches[first : first + count]))
            saved[rank] = max(0, at - released)
    return max(int(steps.end.max()) - saved[steps.rank] for steps in ranks)


def _events(steps: RankSteps, table: BatchTable, column: int) -> tuple[Ints, Ints]:
    """A rank's submits and releases, and rows of batches.

    Each is a column: when, what, the rank, when the released wait began, and the place of the first of its batches
    among the rows and their number. Waits that found everything done leave nothing.
    """
    submit, done = table.submit[:, column], table.done[:, column]
    rows = np.flatnonzero(submit != MISSING)
    order = rows[np.argsort(done[rows], kind="stable")]
    # At the end of a step, what it submitted is done in any case.
    moments = np.unique(np.concatenate((steps.syncs, steps.end)))
    bounds = np.concatenate(([0], np.searchsorted(done[order], moments, side="right")))
    some = np.flatnonzero(np.diff(bounds))
    begin = at = moments[some]
    if len(steps.waits):  # else the rank's part ends before its first wait
        wait = steps.waits[np.minimum(np.searchsorted(steps.waits[:, 1], at), len(steps.waits) - 1)]
        begin = np.where(wait[:, 1] == at, wait[:, 0], at)
    submits = np.zeros((6, len(rows)), dtype=np.int64)
    submits[0], submits[1], submits[2], submits[4] = submit[rows], _SUBMIT, steps.rank, np.arange(len(rows))
    releases = np.empty((6, len(some)), dtype=np.int64)
    releases[0], releases[1], releases[2], releases[3] = at, _RELEASE, steps.rank, begin
    releases[4], releases[5] = len(rows) + bounds[some], np.diff(bounds)[some]
    return np.concatenate((submits, releases), axis=1), np.append(rows, order)
