"""Whether aligned clocks tell a possible story: on schedules whose clocks are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringtune.timeline.analysis.causality import causality
from ringtune.timeline.analysis.peer_wait import negotiation_peer_waits, negotiations, peer_waits
from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.inputs import load
from ringtune.timeline.spans import COLUMN_TYPES, SpanTable
from ringtune.timeline.synthetic.generate import HostClock, generate
from ringtune.timeline.vocabulary import Stage
from tests.timeline.helpers import four_ranks


@pytest.mark.parametrize("clock", [HostClock(-777_000_123_456, 40.0), HostClock(10**12, -80.0), HostClock()])
def test_well_measured_clocks_contradict_nothing(clock: HostClock, tmp_path: Path) -> None:
    job = generate(four_ranks(clocks={"host-b": clock}))
    found = causality(load(job.write(tmp_path)))
    assert job.truth is not None
    assert (found.checked, found.violations, found.worst_ns) == (job.truth.batches, 0, 0)


def test_a_clock_that_is_off_by_more_than_a_collective_lasts_is_found(tmp_path: Path) -> None:
    plan = four_ranks(clocks={})
    trace = load(generate(plan).write(tmp_path))
    wrong = 10 * plan.communicate_ns
    shift = np.where(np.isin(trace.spans.rank, (2, 3)), wrong, 0)
    found = causality(type(trace)(**{**vars(trace), "spans": trace.spans.shifted(shift)}))
    assert found.violations == found.checked > 0
    # Released by the others as early as they began: the whole error less what a batch lasts.
    assert 0 < found.worst_ns <= wrong
    shifted = replace(trace, spans=trace.spans.shifted(shift))
    assert summarize(shifted).causality == found
    said = f"{found.checked} of {found.checked} batches were received before they were sent, by up to "
    (warning,) = summarize(shifted).warnings()
    assert warning.startswith(said) and warning.endswith(": the clocks are worse than they claim")
    (warning,) = summarize(replace(shifted, parts=tuple(replace(part, host="a") for part in trace.parts))).warnings()
    assert warning.startswith(said) and ": host a has one clock, so machines or containers share its name" in warning


def test_a_trace_of_one_rank_has_nothing_to_contradict(tmp_path: Path) -> None:
    (path, *_) = generate(four_ranks(clocks={})).write(tmp_path)
    assert causality(load(path)).checked == 0


def table(rows: list[dict[str, int]], facts: tuple[str, ...] = ("",)) -> SpanTable:
    columns = {name: np.array([row.get(name, 0) for row in rows], dtype=kind) for name, kind in COLUMN_TYPES.items()}
    return SpanTable(**columns, names=("n",), tensors=("", "a", "b"), fact_texts=facts)


def test_waits_are_summed_by_who_waited_for_whom() -> None:
    await_1 = {"stage": Stage.AWAIT, "facts": 1}
    rows = [
        {**await_1, "rank": 0, "end_ns": 10},
        {**await_1, "rank": 0, "begin_ns": 20, "end_ns": 50},
        {"stage": Stage.AWAIT, "facts": 2, "rank": 1, "end_ns": 7},
        {"stage": Stage.AWAIT, "rank": 1, "end_ns": 1000},  # nobody knows for whom
        {"stage": Stage.WAIT, "facts": 1, "rank": 1, "end_ns": 1000},
    ]
    found = peer_waits(table(rows, ("", '"step_schedule":1,"peer":1', '"peer":0')))
    assert [(one.rank, one.peer, one.count, one.total_ns, one.longest_ns) for one in found] == [
        (0, 1, 2, 40, 30),
        (1, 0, 1, 7, 7),
    ]


def test_negotiation_is_waiting_for_the_last_rank_and_control() -> None:
    def submit(rank: int, begin: int, end: int, batch: int = 1, facts: int = 0) -> dict[str, int]:
        times = {"begin_ns": begin, "end_ns": end}
        return {"stage": Stage.NEGOTIATE, "rank": rank, "batch": batch, "tensor": 1, "facts": facts, **times}

    rows = [
        submit(0, 100, 180),
        submit(1, 150, 190),  # last: 50 for it, 30 and 40 to agree
        submit(0, 0, 500, batch=2),  # rank 1 did not record it
        submit(0, 600, 700, batch=3, facts=1),  # a step schedule's
        submit(1, 600, 700, batch=3, facts=1),
    ]
    found = negotiations(table(rows, ("", '"step_schedule":1')))
    assert [(one.rank, one.waiting_ns, one.control_ns) for one in found] == [(0, 50, 30), (1, 0, 40)]
    waits = negotiation_peer_waits(table(rows, ("", '"step_schedule":1')))
    assert [(one.rank, one.peer, one.count, one.total_ns, one.longest_ns) for one in waits] == [(0, 1, 1, 50, 50)]
    assert negotiation_peer_waits(table(rows[:1])) == negotiations(table(rows[:1])) == ()
