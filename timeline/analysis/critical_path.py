"""The critical path: the chain of causes, across ranks and steps, that set how long the job took.

Found by walking backwards from the last rank's end. While a rank computes, the path stays on it. Where it waited, the
path goes to the batch whose end released it: copied out, moved (from the moment the last rank had begun, on whose side
the path goes on), copied in, queued (behind the batch before, where that was still running), negotiated (from the
last submit, to whose rank the path goes). Under a step schedule it is not negotiated but waits for the rank that comes
last, which the others recorded, whatever the clocks make of it: it comes when it has submitted and is through with the
batch before, where the path then goes on. The stretches tile the time from the job's begin to its end: their lengths
add up to it exactly. They belong to the step that their rank was in.

Causes: ``compute``; ``late`` = the part of compute after all other ranks had submitted: what they waited for this
rank (where the path stays on a rank, which did not wait in this step or for no batch: after which all others were
blocked, too); ``control`` = last submit (under a step schedule: arrival) until agreed; ``queue``, ``copy_in``,
``transfer``, ``copy_out`` as recorded (of a GPU's tensor also its way to the host: ``copy_in``, behind other copies
``queue``, and ``compute`` until the GPU was done with it; from GPU to GPU ``queue`` from the moment at which its data
was there and the batch was launched until it was packed, which is ``copy_in``, or began); ``wake`` = batch done until
the caller went on; ``unknown`` = a wait that no recorded batch explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.batches import MISSING, BatchTable, batch_table, rank_steps
from ringtune.timeline.analysis.buckets import bucket_names
from ringtune.timeline.analysis.intervals import intersection, union
from ringtune.timeline.analysis.path_lookups import Cells, RankIndex
from ringtune.timeline.analysis.staged import StagedTensors
from ringtune.timeline.spans import Ints, Trace
from ringtune.timeline.units import tensor_text

CAUSES = ("compute", "late", "control", "queue", "copy_in", "transfer", "copy_out", "wake", "unknown")


class Stretch(NamedTuple):
    """A piece of the path: between these moments, this cause on this rank set the job's length."""

    cause: str
    rank: int
    begin_ns: int
    end_ns: int
    step: int
    batch: int = 0
    label: str = ""

    @property
    def duration_ns(self) -> int:
        """Length of the stretch."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Contribution:
    """What one cause on one rank added to the job's length, over all steps; ``steps``: how many it touched."""

    cause: str
    rank: int
    total_ns: int
    share: float
    steps: int


@dataclass(frozen=True)
class StepPath:
    """What set one step's length: its causes, their sum, and which rank's cause weighed most."""

    step: int
    length_ns: int
    causes: dict[str, int]
    main_cause: str
    main_rank: int


@dataclass(frozen=True)
class CriticalPath:
    """The whole path in the order of time, and its sums. ``length_ns`` is the sum of all stretches."""

    length_ns: int
    stretches: tuple[Stretch, ...]
    causes: dict[str, int]
    contributions: tuple[Contribution, ...]
    steps: tuple[StepPath, ...]
    batches: tuple[tuple[str, int], ...]
    """Tensors whose transfer was on the path, longest first, with their nanoseconds."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data, stretches included."""
        found = asdict(replace(self, stretches=(), steps=()))
        found["stretches"] = [dict(zip(Stretch._fields, stretch, strict=True)) for stretch in self.stretches]
        return {**found, "steps": [dict(vars(step)) for step in self.steps]}


class _Walk:
    """Walks backwards; ``found`` holds the stretches, last first."""

    def __init__(self, trace: Trace, table: BatchTable) -> None:
        self.table, self.cells = table, Cells(table)
        columns = {rank: column for column, rank in enumerate(table.ranks)}
        self.ranks: dict[int, RankIndex] = {}
        for rank in trace.ranks:
            steps = rank_steps(trace, rank)
            if steps is not None:
                self.ranks[rank] = RankIndex(steps, table, columns.get(rank))
        if not self.ranks:
            raise RingtuneError("no spans: nothing to follow; record a timeline with `ringtune run --timeline`")
        if not any(index.steps.knows_waiting for index in self.ranks.values()):
            raise RingtuneError(
                "no waits in the trace: a critical path needs steps and waits of every rank; "
                "record with `ringtune run --timeline`, or give PyTorch's traces of all ranks"
            )
        self.start = min(int(index.steps.begin[0]) for index in self.ranks.values())
        self.found: list[
            tuple[str, int, int, int, int, int, str]
        ] = []  # the collector of garbage does not follow these
        self.at = 0
        self.last, self.others = table.last_submits()
        self.late_from: int | None = None  # the others had submitted by then
        self.unexplained = False  # no batch released the rank that the walk is on: it may as well not have waited
        self.staged = StagedTensors(trace)
        self.waited_for = _waited_for(table, {rank: index.steps.waits for rank, index in self.ranks.items()})

    def run(self) -> None:
        """Follow the causes from the end of the job to its start."""
        rank = max(self.ranks, key=lambda number: (int(self.ranks[number].steps.end.max()), -number))
        self.at = int(self.ranks[rank].steps.end.max())
        while self.at > self.start:
            wait = self.ranks[rank].wait_before(self.at)
            if wait is not None and self.at <= wait[1]:
                rank = self._released(rank, wait[0])
            else:
                self._computed(rank, wait[1] if wait is not None else self.start)

    def _add(self, cause: str, rank: int, begin: int, row: int | None = None) -> None:
        """Take the time from ``begin`` up to where the walk is; moments out of order (clock errors) add nothing."""
        begin = max(begin, self.start)
        if begin >= self.at:
            return
        batch, label = (self.cells.ids[row], self.cells.labels[row]) if row is not None else (0, "")
        self.found.append((cause, rank, begin, self.at, self.ranks[rank].step_at(self.at)[0], batch, label))
        self.at = begin

    def _computed(self, rank: int, released: int) -> None:
        step_begin = self.ranks[rank].step_at(self.at)[1]
        begin = max(released, step_begin)
        if begin >= self.at:
            begin = self.start  # before its first step: nothing is known of this rank
        if self.late_from is not None:
            self._add("late", rank, max(begin, self.late_from))
            self.late_from = None
        elif begin == step_begin or self.unexplained:
            self._stayed(rank, begin)
        self._add("compute", rank, begin)

    def _stayed(self, rank: int, begin: int) -> None:
        """No batch had the path come to this rank, or away from it: what all others waited for is ``late`` here too."""
        times = self.waited_for.get(rank, _NOTHING)
        low, high = np.searchsorted(times[:, 1], begin, side="right"), np.searchsorted(times[:, 0], self.at)
        for start, end in times[low:high][::-1].tolist():
            self._add("compute", rank, max(begin, end))
            self._add("late", rank, max(begin, start))

    def _released(self, rank: int, wait_begin: int) -> int:
        """The rank waited until now: go through the batch that released it; return the rank where that leads."""
        self.late_from, self.unexplained = None, False
        row = self.ranks[rank].batch_done(self.at)
        column = self.ranks[rank].column
        if row is None or column is None or self.cells.done[row, column] <= wait_begin:
            self._add("unknown", rank, wait_begin)
            self.unexplained = True
            return rank
        self._add("wake", rank, self.cells.done[row, column])
        before = self.at
        led_to = self._through(rank, row)
        if self.at < before:
            return led_to
        self._add("unknown", rank, wait_begin)  # clocks so wrong that the batch explains nothing
        return rank

    def _through(self, rank: int, row: int) -> int:
        """From the moment a batch was done on a rank back to the submit it waited for."""
        cells = self.cells
        while True:
            column = self.ranks[rank].column
            assert column is not None  # a rank with a batch has a column
            self._add("copy_out", rank, cells.end[row, column], row)
            self._add("transfer", rank, cells.began[row], row)
            rank = self.table.ranks[cells.began_last[row]]
            if self._computing(rank, row):
                return rank
            before = self._queued_behind(rank, row)
            if before is None:
                rank, before = self._agreed(rank, row)
            if before is None:
                self._staged(rank, row)
                return rank
            row = before

    def _computing(self, rank: int, row: int) -> bool:
        """From GPU to GPU: add packing and the queue there; whether the batch had waited for this rank's GPU."""
        cells, column = self.cells, self.ranks[rank].column
        if column is None or cells.ready[row, column] == MISSING:
            return False
        ready, launched = cells.ready[row, column], cells.start[row, column]
        came_there = max(ready, launched)
        self._add("copy_in", rank, max(cells.packed[row, column], came_there), row)
        self._add("queue", rank, came_there, row)
        if ready <= launched:
            return False
        came = np.maximum(self.table.submit[row], self.table.ready[row])
        came[column] = MISSING
        others = int(came.max())
        self.late_from = others if others != MISSING else None
        return True

    def _staged(self, rank: int, row: int) -> None:
        """A tensor of a GPU: before the others learned of it, it was copied to the host, and computed before that."""
        found = self.staged.before(rank, self.cells.ids[row], self.at)
        if found is None:
            return
        self._add("copy_in", rank, found.copied_ns, row)
        self._add("queue", rank, found.ready_ns, row)
        if self.late_from is not None:
            self._add("late", rank, max(found.submitted_ns, self.late_from))
            if self.at == self.late_from:
                self.late_from = None
        self._add("compute", rank, found.submitted_ns)

    def _agreed(self, rank: int, row: int) -> tuple[int, int | None]:
        """Add control; return the rank that all waited for and the batch that it came from, None from computing."""
        cells, ranks, last, others = self.cells, self.table.ranks, int(self.last[row]), int(self.others[row])
        to_blame, before = rank, None
        if cells.scheduled[row]:
            last = self._last_to_come(row)
            to_blame, before = ranks[last], self._came_from(row, last)
        self._add("control", to_blame, cells.submit[row, last] if before is None else cells.done[before, last], row)
        if before is None:
            self.late_from = others if others != MISSING else None
        return ranks[last], before

    def _last_to_come(self, row: int) -> int:
        """Column of the rank that came last to a batch of a step schedule."""
        cells = self.cells
        if cells.awaited_peer[row] >= 0:
            return int(cells.awaited_peer[row])
        came = []
        for column in range(len(self.table.ranks)):
            before = self._came_from(row, column)
            came.append(cells.submit[row, column] if before is None else cells.done[before, column])
        return came.index(max(came))

    def _came_from(self, row: int, column: int) -> int | None:
        """The batch that a rank was still busy with when it submitted this one's last tensor."""
        return self._busy_with(row, column, self.cells.submit[row, column])

    def _busy_with(self, row: int, column: int, at_ns: int) -> int | None:
        """The last batch that a rank was through with before it began this one, if it was not at this moment."""
        index = self.ranks.get(self.table.ranks[column])
        before = index.before[row] if index is not None else -1
        return before if before >= 0 and before != row and self.cells.done[before, column] > at_ns else None

    def _queued_behind(self, rank: int, row: int) -> int | None:
        """Add copying in and queueing; return the batch that was in the way, None when none was."""
        cells, column = self.cells, self.ranks[rank].column
        assert column is not None  # a rank with a batch has a column
        agreed = cells.agreed[row, column]
        before = self._busy_with(row, column, agreed)
        ready = cells.done[before, column] if before is not None else agreed
        self._add("copy_in", rank, max(ready, cells.start[row, column]), row)
        self._add("queue", rank, ready, row)
        return before


_NOTHING = np.empty((0, 2), dtype=np.int64)


def _waited_for(table: BatchTable, waits: Mapping[int, Ints]) -> dict[int, Ints]:
    """When all other ranks were blocked and had submitted what only this rank had not, by rank."""
    asked = table.take(table.complete & ~table.scheduled)
    if len(asked.ranks) < 2 or not len(asked.ids):
        return {}
    last, others = asked.last_submits()
    found = {}
    for column, rank in enumerate(asked.ranks):
        mine = last == column
        times = union(others[mine], asked.submit[mine, column])
        for other in asked.ranks:
            if other != rank and len(times):
                times = intersection(times, waits.get(other, _NOTHING))
        found[rank] = times
    return found


def critical_path(trace: Trace) -> CriticalPath:
    """Find the critical path of a trace of one or several ranks.

    Raises:
        RingtuneError: The trace holds no spans, or does not say when ranks waited.
    """
    table = batch_table(trace)
    walk = _Walk(trace, table)
    walk.run()
    stretches = tuple(map(partial(tuple.__new__, Stretch), reversed(walk.found)))
    by_step = _sums_by_step(stretches)
    length = sum(sum(sums.values()) for sums in by_step.values())
    contributions = _contributions(list(by_step.values()), length)
    return CriticalPath(
        length_ns=length,
        stretches=stretches,
        causes=_causes({(one.cause, one.rank): one.total_ns for one in contributions}),
        contributions=contributions,
        steps=tuple(_steps(by_step)),
        batches=_batches(stretches, bucket_names(trace)),
    )


_Sums = dict[tuple[str, int], int]
"""Nanoseconds of every cause on every rank."""


def _causes(sums: _Sums) -> dict[str, int]:
    """The sum of each cause that has any, in the order of `CAUSES`."""
    found = dict.fromkeys(CAUSES, 0)
    for (cause, _), total in sums.items():
        found[cause] += total
    return {cause: total for cause, total in found.items() if total}


def _sums_by_step(stretches: Sequence[Stretch]) -> dict[int, _Sums]:
    found: dict[int, _Sums] = {}
    for cause, rank, begin, end, step, _, _ in stretches:
        sums = found.setdefault(step, {})
        sums[cause, rank] = sums.get((cause, rank), 0) + end - begin
    return found


def _contributions(steps: Sequence[_Sums], length: int) -> tuple[Contribution, ...]:
    totals: _Sums = {}
    touched: dict[tuple[str, int], int] = {}
    for sums in steps:
        for key, total in sums.items():
            totals[key] = totals.get(key, 0) + total
            touched[key] = touched.get(key, 0) + 1
    ordered = sorted(totals, key=lambda key: (-totals[key], key))
    return tuple(
        Contribution(cause, rank, totals[cause, rank], totals[cause, rank] / length, touched[cause, rank])
        for cause, rank in ordered
    )


def _steps(by_step: Mapping[int, _Sums]) -> Iterator[StepPath]:
    for step, sums in sorted(by_step.items()):
        _, main = min((-total, key) for key, total in sums.items())
        yield StepPath(step, sum(sums.values()), _causes(sums), *main)


def _batches(stretches: Sequence[Stretch], buckets: Mapping[int, str]) -> tuple[tuple[str, int], ...]:
    of_label: dict[str, int] = {}
    for cause, _, begin, end, _, _, label in stretches:
        if cause == "transfer":
            of_label[label] = of_label.get(label, 0) + end - begin
    moved: dict[str, int] = {}
    for label, total in of_label.items():
        text = tensor_text(label, buckets)
        moved[text] = moved.get(text, 0) + total
    return tuple(sorted(moved.items(), key=lambda item: (-item[1], item[0])))
