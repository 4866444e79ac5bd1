"""Batches of some ranks only, of a process set or a group of torch.distributed: they are judged among themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.timeline.analysis.arrivals import arrivals, clock_errors
from ringtune.timeline.analysis.batches import batch_table, numbered
from ringtune.timeline.analysis.lateness import lateness_by_cause
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.spans import SpanTable, Trace, concatenate
from ringtune.timeline.vocabulary import Stage
from tests.timeline.helpers import make_spans, trace_of
from tests.timeline.scenario import Scenario
from tests.timeline.test_ground_truth import plans


def of_set(spans: SpanTable, number: int) -> SpanTable:
    """The spans, their batches of a process set."""
    texts = tuple(f'{text},"process_set":{number}' if text else f'"process_set":{number}' for text in spans.fact_texts)
    return replace(spans, fact_texts=(*spans.fact_texts, *texts), facts=spans.facts + len(texts) * (spans.batch > 0))


def beside(trace: Trace, number: int, bystanders: int) -> Trace:
    """The job as a process set of a larger one: each other rank makes the same steps in a set of its own."""
    ranks = max(trace.ranks) + 1
    first = trace.spans.of_rank(0)
    others = []
    for at in range(bystanders):
        batch = np.where(first.batch > 0, first.batch + (1 + at << 20), 0)
        others.append(of_set(replace(first, batch=batch, rank=first.rank + ranks + at), number + 1 + at))
    parts = [replace(trace.parts[0], rank=ranks + at) for at in range(bystanders)]
    return replace(trace, spans=concatenate([of_set(trace.spans, number), *others]), parts=(*trace.parts, *parts))


@settings(max_examples=40, deadline=None)
@given(plan=plans().filter(lambda plan: plan.ranks > 1), bystanders=st.integers(1, 3))
def test_a_group_is_judged_as_a_job_of_its_own(plan: Scenario, bystanders: int) -> None:
    trace, _ = trace_of(plan)
    larger = beside(trace, 7, bystanders)
    alone, found = stragglers(trace, permuted=False), stragglers(larger, permuted=False)
    assert found.batches == alone.batches
    for mine, theirs in zip(alone.ranks, found.ranks, strict=False):
        assert theirs.rank == mine.rank and theirs.carried_ns == mine.carried_ns
        for cause, one in mine.causes.items():
            assert (theirs.causes[cause].steps_last, theirs.causes[cause].total_ns) == (one.steps_last, one.total_ns)
    one, other = arrivals(trace), arrivals(larger)
    assert (other.tensors, other.tensors_undecided, other.batches) == (one.tensors, one.tensors_undecided, one.batches)
    assert other.ranks[: len(one.ranks)] == one.ranks


@pytest.mark.parametrize("bystanders", [1, 6])
def test_a_rank_that_is_late_for_its_group_is_named_in_the_whole_job(bystanders: int) -> None:
    trace, _ = trace_of(Scenario(ranks=3, steps=60, slow_compute={1: 6_000_000}))
    found = stragglers(beside(trace, 3, bystanders))
    assert [(one.rank, one.cause, one.pattern) for one in found.verdicts] == [(1, "compute", "always")]
    assert found.significance["compute"] == 1.0, "not all ranks are exchangeable"


def test_by_turns_within_its_pair_no_rank_of_many_is_accused() -> None:
    """One of two equal ranks is last in half of the steps, however many ranks the job has."""
    trace, _ = trace_of(Scenario(ranks=2, steps=80, jitter_ns=6_000_000, seed=5))
    found = stragglers(beside(trace, 3, 30))
    assert not found.verdicts


def test_a_batch_that_one_member_did_not_record_is_left_out() -> None:
    trace, _ = trace_of(Scenario(ranks=3, steps=6))
    spans = of_set(trace.spans, 2)
    lost = (spans.rank == 1) & (spans.batch == spans.batch.max())
    table = batch_table(replace(trace, spans=spans.take(~lost)))
    assert table.whole.tolist() == [True] * (len(table.ids) - 1) + [False]
    alone = batch_table(replace(trace, spans=spans.take(spans.rank == 1)))
    assert not alone.whole.any() and alone.complete.all()


def test_chances_follow_the_group() -> None:
    trace, _ = trace_of(Scenario(ranks=2, steps=4))
    larger = beside(trace, 1, 2)
    table = batch_table(larger)
    found, _ = lateness_by_cause(larger, table.take(table.whole), clock_errors(larger))
    assert {float(one) for late in found.values() for one in np.unique(late.probability)} == {0.5}


@pytest.mark.parametrize("name", ["RING_SEND", "RING_RECV", "gloo:send", "nccl:recv 0<-1"])
def test_a_send_is_no_collective_of_all_ranks(name: str) -> None:
    def named(name: str) -> SpanTable:
        tables = [make_spans([(0, 5), (10, 15)], stage=Stage.COMMUNICATE, rank=rank) for rank in range(3)]
        return replace(concatenate(tables), names=(name,))

    assert not numbered(named(name)).batch.any()
    assert sorted(numbered(named("gloo:all_reduce")).batch.tolist()) == [1, 1, 1, 2, 2, 2]
