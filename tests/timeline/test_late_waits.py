"""Waiting for late ranks against exposed communication, in traces whose collectives hold the waiting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.timeline.analysis.late_waits import late_waits
from ringtune.timeline.analysis.phases import exposure
from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.spans import COLUMN_TYPES, PartInfo, SpanTable, Trace
from ringtune.timeline.vocabulary import RING_PREFIX, Stage

MS = 1_000_000


def gloo_like(came_ms: list[list[int]], moving_ms: list[int], *, error_ns: int = 0, bytes_each: int = 1000) -> Trace:
    """A job whose ranks are blocked in each collective from when they come until it is done.

    Args:
        came_ms: By step and rank, after the step's begin at 100 ms a step, when the rank came to its collective.
        moving_ms: By step, how long bytes move once all have come.
        error_ns: Of every clock but rank 0's; each rank is on a host of its own.
        bytes_each: Of each collective.
    """
    rows = []
    for step, (came, moving) in enumerate(zip(came_ms, moving_ms, strict=True)):
        done = (100 * step + max(came) + moving) * MS
        for rank, at in enumerate(came):
            begin = (100 * step + at) * MS
            rows += [
                (begin, begin, Stage.NEGOTIATE, rank, 0),
                (begin, done, Stage.COMMUNICATE, rank, bytes_each),
                (begin, done, Stage.WAIT, rank, 0),
                (100 * step * MS, (100 * step + 99) * MS, Stage.STEP, rank, 0),
            ]
    size = len(came_ms[0])
    table = np.array(rows, dtype=np.int64)
    step = table[:, 0] // (100 * MS)
    columns = {name: np.zeros(len(table), dtype=kind) for name, kind in COLUMN_TYPES.items()}
    columns |= {name: table[:, at] for at, name in enumerate(("begin_ns", "end_ns", "stage", "rank", "bytes"))}
    columns |= {"step": step, "batch": np.where(table[:, 2] == Stage.STEP, 0, step + 1)}
    columns = {name: column.astype(COLUMN_TYPES[name]) for name, column in columns.items()}
    spans = SpanTable(**columns, names=(RING_PREFIX + "ALLREDUCE",), tensors=("",), fact_texts=("",))
    parts = tuple(part_of(rank, error_ns) for rank in range(size))
    return Trace(spans, (), parts, "merged", "job")


def part_of(rank: int, error_ns: int) -> PartInfo:
    return PartInfo(rank=rank, host=f"host{rank}", error_ns=error_ns if rank else 0)


came = st.integers(2, 4).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 40), min_size=size, max_size=size), min_size=1, max_size=6)
)


@settings(max_examples=60, deadline=None)
@given(came=came, data=st.data())
def test_waiting_inside_a_collective_is_for_the_late_rank_and_no_part_of_its_bandwidth(
    came: list[list[int]], data: st.DataObject
) -> None:
    moving = data.draw(st.lists(st.integers(1, 30), min_size=len(came), max_size=len(came)))
    trace = gloo_like(came, moving)
    late, size = late_waits(trace), len(came[0])
    for rank in range(size):
        found = exposure(trace.spans.of_rank(rank), None, late.of_rank(rank))
        assert found.late_ns == sum(max(step) - step[rank] for step in came) * MS
        assert found.exposed_ns == sum(moving) * MS
        assert (found.overlapped_ns, found.wait_copy_ns, found.wait_other_ns) == (0, 0, 0)
    summary = summarize(trace)
    assert summary.bus_bytes_per_s == pytest.approx(1000 * len(came) * 2 * (size - 1) / size / (sum(moving) * 1e-3))
    waited = sum(max(step) - at for step in came for at in step)
    blocked = size * sum(moving)
    assert summary.dominated_by == ("" if waited == blocked else "skew" if waited > blocked else "transfer")


def test_who_is_closer_than_the_clocks_can_tell_is_not_late() -> None:
    trace = gloo_like([[10, 14], [10, 30]], [5, 5], error_ns=5 * MS)
    found = exposure(trace.spans.of_rank(0), None, late_waits(trace).of_rank(0))
    assert found.late_ns == 20 * MS and found.exposed_ns == (9 + 5) * MS
