"""What analyses look up in one pass over all batches or submissions is what a search for each of them finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.timeline.analysis.arrivals import ClockErrors, Submits, last_ones
from ringtune.timeline.analysis.batches import MISSING, batch_table, rank_steps
from ringtune.timeline.analysis.path_lookups import RankIndex
from ringtune.timeline.spans import Trace
from tests.timeline.helpers import trace_of
from tests.timeline.planted import MS, job


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A job, of which spans may be gone and moments may be equal."""
    grain, seed = draw(st.sampled_from([1, MS, 20 * MS])), draw(st.integers(0, 2**32 - 1))
    trace, _ = trace_of(job(draw(st.integers(2, 3)), draw(st.integers(2, 8)), 12, {(1, 1): 60 * MS}))
    kept = np.random.default_rng(seed).random(len(trace.spans)) < draw(st.sampled_from([0.8, 1.0]))
    spans = trace.spans.take(kept)
    return replace(
        trace, spans=replace(spans, begin_ns=spans.begin_ns // grain * grain, end_ns=spans.end_ns // grain * grain)
    )


@settings(max_examples=40, deadline=None)
@given(trace=traces(), moments=st.lists(st.integers(-MS, 400 * MS), min_size=1, max_size=60))
def test_the_path_looks_up_what_a_search_finds(trace: Trace, moments: list[int]) -> None:
    table = batch_table(trace)
    for column, rank in enumerate(table.ranks):
        steps = rank_steps(trace, rank)
        assert steps is not None
        index = RankIndex(steps, table, column)
        begins = list(zip(steps.begin.tolist(), steps.number.tolist(), strict=True))
        for at in [*moments, *steps.begin.tolist(), *steps.end.tolist()]:
            begin, number = ([begins[0]] + [one for one in begins if one[0] < at])[-1]
            assert index.step_at(at) == (number, begin)
        for row, begin in enumerate(table.begin[:, column].tolist()):
            done = [(one, at) for at, one in enumerate(table.done[:, column].tolist()) if MISSING != one <= begin]
            assert index.before[row] == (max(done)[1] if done else -1)


@given(
    groups=st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 6), min_size=1), max_size=12),
    complete=st.booleans(),
    data=st.data(),
)
def test_the_last_of_each_group_is_found(groups: list[dict[int, int]], complete: bool, data: st.DataObject) -> None:
    if complete:
        groups = [{rank: one.get(rank, 3) for rank in range(4)} for one in groups]
    rows = [(group, rank, at) for group, one in enumerate(groups) for rank, at in sorted(one.items())]
    if data.draw(st.booleans()):
        rows = data.draw(st.permutations(rows))
    group, rank, at = (np.array([row[place] for row in rows], dtype=np.int64) for place in range(3))
    error = ClockErrors(np.arange(4), np.ones((4, 4)))
    found = last_ones(Submits(group, rank, at, np.arange(len(rows)), np.zeros_like(group)), error)
    expected = []
    for number, one in enumerate(groups):
        *others, (last, who) = sorted((moment, member) for member, moment in one.items())
        if others and len(one) == len(set(rank.tolist())):
            sure = all(last - moment > 1 for moment, _ in others)
            tensor = rows.index((number, who, last))
            expected.append((who if sure else -1, last, last - others[-1][0], tensor, number))
    columns = (found.rank, found.at_ns, found.lateness_ns, found.tensor, found.group)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
