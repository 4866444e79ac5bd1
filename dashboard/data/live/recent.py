"""The newest spans of a growing timeline in order of arrival: recent steps need not be sorted into lanes first."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ringtune.dashboard.data.timeline.levels import PLACE_OF_STAGE, STAGES, in_lanes
from ringtune.timeline.spans import COLUMN_TYPES, SpanTable
from ringtune.timeline.vocabulary import Stage

MOST_SPANS = 30_000
"""The number of spans that are kept; earlier ones are in the lanes."""


def joined(tables: Sequence[SpanTable]) -> SpanTable:
    """Return the spans of tables, at least one, whose texts have the same codes; the last one knows most of them."""
    columns = {name: np.concatenate([getattr(one, name) for one in tables]) for name in COLUMN_TYPES}
    last = tables[-1]
    return SpanTable(**columns, names=last.names, tensors=last.tensors, fact_texts=last.fact_texts)


class Recent:
    """Keeps the newest spans of all ranks. Not safe to use from several threads at once."""

    def __init__(self) -> None:
        self._tables: deque[tuple[int, SpanTable]] = deque()  # with the last step of each
        self._count = 0
        self._from = -1  # all spans of later steps are kept
        self._ends: dict[int, tuple[int, int]] = {}

    def add(self, spans: SpanTable) -> None:
        """Take spans."""
        if not len(spans):
            return
        self._note_steps(spans)
        last = int(spans.step.max())
        self._tables.append((last, spans))
        self._count += len(spans)
        while self._count > MOST_SPANS:
            last, dropped = self._tables.popleft()
            self._count -= len(dropped)
            self._from = max(self._from, last)

    def _note_steps(self, spans: SpanTable) -> None:
        steps = np.flatnonzero(spans.in_stage(Stage.STEP))
        for place in steps[np.argsort(spans.begin_ns[steps], kind="stable")].tolist():
            begin, rank = int(spans.begin_ns[place]), int(spans.rank[place])
            if begin >= self._ends.get(rank, (begin, 0))[0]:
                self._ends[rank] = (begin, int(spans.step[place]))

    @property
    def last_step(self) -> int:
        """The last step that every rank that has any has ended; -1 where there is none."""
        return min((step for _, step in self._ends.values()), default=-1)

    def between(self, after: int, upto: int) -> SpanTable | None:
        """Return the spans of the steps after one up to another, lane by lane; None where not all of them are kept."""
        if after < self._from or not self._tables:
            return None
        later = [table for last, table in self._tables if last > after]
        spans = joined(later or [self._tables[-1][1]])
        shown = (spans.step > after) & (spans.step <= upto) & (PLACE_OF_STAGE[spans.stage] < len(STAGES))
        return spans.take(in_lanes(spans, shown)[0])
