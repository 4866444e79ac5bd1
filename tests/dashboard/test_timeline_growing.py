"""Lanes that grow at their ends and in their middle are what lanes made of all spans at once are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.dashboard.data.live.lanes import GrowingLanes
from ringtune.dashboard.data.timeline.levels import Lane, build_lanes
from ringtune.timeline.spans import SpanTable
from ringtune.timeline.vocabulary import Stage
from tests.dashboard.test_timeline_data import table


def same(ours: tuple[Lane, ...], theirs: tuple[Lane, ...]) -> None:
    assert [(lane.rank, lane.stage, lane.rows) for lane in ours] == [(one.rank, one.stage, one.rows) for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for name in ("begin", "end", "reach", "row"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name


def spans_of(pauses: list[int], lengths: list[int]) -> SpanTable:
    begins = np.cumsum(pauses)
    rows = [(int(begin), int(begin) + length) for begin, length in zip(begins, lengths, strict=False)]
    return table(rows, Stage.NEGOTIATE)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 90)), min_size=1, max_size=60),
    st.permutations(range(4)),
)
def test_in_any_order_of_pieces(spans: list[tuple[int, int]], order: list[int]) -> None:
    whole = spans_of([pause for pause, _ in spans], [length for _, length in spans])
    lanes = GrowingLanes()
    for piece in order:
        lanes.add(whole.take(np.arange(piece * len(whole) // 4, (piece + 1) * len(whole) // 4)))
    same(lanes.lanes(), build_lanes(whole).lanes())


@pytest.mark.parametrize("length", [5, 500])
def test_a_past_that_is_read_later_leaves_the_rows_behind_it_as_they_are(length: int) -> None:
    whole = spans_of([10] * 3000, [length] * 3000)
    lanes = GrowingLanes()
    for first, last in ((0, 200), (2800, 3000)):
        lanes.add(whole.take(np.arange(first, last)))
    before = lanes.moved
    for first in range(200, 2800, 200):
        lanes.add(whole.take(np.arange(first, first + 200)))
    same(lanes.lanes(), build_lanes(whole).lanes())
    assert lanes.moved - before < 5 * 3000 * 3
