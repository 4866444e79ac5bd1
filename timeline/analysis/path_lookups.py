"""What the walk of the critical path looks up: single cells of the table of batches, and moments of a rank."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from ringtune.timeline.analysis.batches import MISSING, BatchTable, RankSteps

_NEVER = 2**62


class Cells:
    """Numbers of a table of batches one by one: a view of memory gives them several times faster than numpy does."""

    def __init__(self, table: BatchTable) -> None:
        self.ids, self.awaited_peer = table.ids.tolist(), table.awaited_peer.data
        self.submit, self.agreed, self.start = table.submit.data, table.agreed.data, table.start.data
        self.begin, self.end, self.done = table.begin.data, table.end.data, table.done.data
        self.ready, self.packed, self.scheduled = table.ready.data, table.packed.data, table.scheduled.data
        none = not table.begin.size
        self.began: memoryview = table.ids.data if none else table.begin.max(axis=1).data
        self.began_last: memoryview = table.ids.data if none else table.begin.argmax(axis=1).data
        self.labels = [table.labels[code] for code in table.label.tolist()]


class RankIndex:
    """What the walk asks about one rank; ``order`` are its batches by the moment they were done."""

    def __init__(self, steps: RankSteps, table: BatchTable, column: int | None) -> None:
        self.steps = steps
        done = table.done[:, column] if column is not None else np.empty(0, dtype=np.int64)
        order = np.argsort(done, kind="stable")
        order = order[done[order] != MISSING]
        self.column = column
        self._order, self._done = order.data, done[order].data
        self._begin, self._number = steps.begin.data, steps.number.data
        self._wait_begin, self._wait_end = steps.waits[:, 0].data, steps.waits[:, 1].data
        begin = table.begin[:, column] if column is not None else np.empty(0, dtype=np.int64)
        place = np.searchsorted(done[order], begin, side="right") - 1
        known = (place >= 0) & (begin != MISSING)
        self.before: memoryview = np.append(order, -1)[np.where(known, place, -1)].data
        """By row of the table: the last batch that was done by the begin of this one, -1 for none."""
        self._step, self._step_from, self._step_to = (0, 0), 0, 0

    def wait_before(self, at_ns: int) -> tuple[int, int] | None:
        """The last wait that began before this moment."""
        place = bisect_left(self._wait_begin, at_ns) - 1
        return (self._wait_begin[place], self._wait_end[place]) if place >= 0 else None

    def step_at(self, at_ns: int) -> tuple[int, int]:
        """(number, begin) of the step in which the moment just before this one lies; most often the last one."""
        if not self._step_from < at_ns <= self._step_to:
            place = max(0, bisect_left(self._begin, at_ns) - 1)
            self._step = self._number[place], self._begin[place]
            self._step_from = self._begin[place]
            self._step_to = self._begin[place + 1] if place + 1 < len(self._begin) else _NEVER
        return self._step

    def batch_done(self, at_ns: int) -> int | None:
        """Row of the last batch that was done by this moment."""
        place = bisect_right(self._done, at_ns) - 1
        return self._order[place] if place >= 0 else None
