"""Every analysis across ranks gives back what the simulated job put in, exactly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.timeline.analysis.batches import batch_table
from ringtune.timeline.analysis.comparison import compare, contrast
from ringtune.timeline.analysis.critical_path import critical_path
from ringtune.timeline.analysis.efficiency import efficiency
from ringtune.timeline.analysis.stragglers import CAUSES, stragglers
from ringtune.timeline.inputs import load
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.spans import SpanTable, Trace, concatenate
from ringtune.timeline.synthetic.generate import HostClock
from ringtune.timeline.vocabulary import Stage
from tests.timeline.helpers import SKEWED, TWO_HOSTS, make_spans, trace_of, with_ranges
from tests.timeline.scenario import Scenario, ScenarioTruth, simulate


def slow(ranks: int, largest: int) -> st.SearchStrategy[dict[int, int]]:
    return st.dictionaries(st.integers(0, ranks - 1), st.integers(0, largest), max_size=2)


def plans() -> st.SearchStrategy[Scenario]:
    def of_size(ranks: int) -> st.SearchStrategy[Scenario]:
        return st.builds(
            Scenario,
            ranks=st.just(ranks),
            steps=st.integers(1, 6),
            batches=st.integers(1, 4),
            tensors_per_batch=st.integers(1, 3),
            compute_ns=st.integers(1_000, 20_000_000),
            jitter_ns=st.integers(10_000, 3_000_000),
            control_ns=st.integers(0, 2_000_000),
            copy_ns=st.integers(0, 200_000),
            transfer_ns=st.integers(1, 15_000_000),
            update_ns=st.integers(1, 3_000_000),
            slow_compute=slow(ranks, 5_000_000),
            slow_control=slow(ranks, 1_000_000),
            slow_link=slow(ranks, 2_000_000),
            scheduled=st.booleans(),
            slow_arrival=slow(ranks, 1_000_000),
            seed=st.integers(0, 10**6),
        )

    return (
        st.integers(1, 5).flatmap(of_size).map(lambda plan: plan if plan.scheduled else replace(plan, slow_arrival={}))
    )


@settings(max_examples=80, deadline=None)
@given(plan=plans())
def test_the_critical_path_is_the_one_that_was_simulated(plan: Scenario) -> None:
    trace, truth = trace_of(plan)
    found = critical_path(trace)
    assert found.length_ns == truth.runtime_ns
    assert found.causes == dict(truth.causes())
    # The stretches tile the job: each begins where the one before ended.
    ends = [stretch.end_ns for stretch in found.stretches]
    assert [stretch.begin_ns for stretch in found.stretches] == [0, *ends[:-1]]
    assert sum(step.length_ns for step in found.steps) == found.length_ns
    assert sum(part.total_ns for part in found.contributions) == found.length_ns


def test_the_critical_path_names_ranks_and_moments() -> None:
    trace, truth = trace_of(Scenario(slow_compute={2: 3_000_000}, slow_link={1: 40_000}))
    found = critical_path(trace)
    start = truth.path[0].begin_ns
    expected = [(cause.name, cause.rank, cause.begin_ns - start, cause.end_ns - start) for cause in truth.path]
    assert [(s.cause, s.rank, s.begin_ns, s.end_ns) for s in found.stretches] == expected
    assert {part.rank for part in found.contributions if part.cause == "late"} == {2}
    assert [step.step for step in found.steps] == list(range(12))


@settings(max_examples=60, deadline=None)
@given(plan=plans())
def test_efficiency_is_exact_and_its_factors_multiply(plan: Scenario) -> None:
    trace, truth = trace_of(plan)
    found = efficiency(trace)
    assert tuple(found.useful_ns.values()) == truth.useful_ns
    assert (found.runtime_ns, found.ideal_ns) == (truth.runtime_ns, truth.ideal_ns)
    product = found.load_balance * found.serialisation * found.transfer
    assert product == found.efficiency == Fraction(sum(truth.useful_ns), plan.ranks * truth.runtime_ns)
    assert all(0 < factor <= 1 for factor in (found.load_balance, found.serialisation, found.transfer))


def test_computation_scaling_compares_with_a_reference() -> None:
    alone, truth = trace_of(Scenario(ranks=1))
    together, slower = trace_of(Scenario(ranks=3, compute_ns=14_000_000))
    found = efficiency(together, alone)
    expected = Fraction(truth.useful_ns[0], 12) / Fraction(sum(slower.useful_ns), 3 * 12)
    assert found.computation == expected
    assert found.load_balance * found.serialisation * found.transfer * expected == found.efficiency
    assert found.to_json()["efficiency"] == pytest.approx(float(found.efficiency))


def late_arrival(plan: Scenario, truth: ScenarioTruth, step: int) -> dict[int, tuple[int, int]]:
    """Batches of a step schedule whose last rank had submitted before another: that rank, the shortest wait for it."""
    found = {}
    rows = zip(truth.submit_ns[step], truth.arrived_ns[step], truth.agreed_ns[step], strict=True)
    for batch, (submits, arrived, agreed) in enumerate(rows):
        came = arrived.index(max(arrived))
        if submits[came] < max(submits):
            waits = [agreed[rank] - arrived[rank] for rank in range(plan.ranks) if rank != came]
            found[batch] = (came, min(waits))
    return found


def gain_of_a_step(plan: Scenario, truth: ScenarioTruth, step: int, moved: dict[int, int]) -> dict[int, int]:
    """By rank: by how much earlier the step's last batch would be out had that rank submitted so much earlier."""
    copying = plan.copy_ns * plan.tensors_per_batch
    ended, sooner = [0], [0]
    for batch in range(plan.batches):
        submit, ends = max(truth.submit_ns[step][batch]), truth.end_ns[step][batch]
        begin = ends[0] - plan.transfer_ns - plan.slow_link.get(0, 0)
        behind = begin >= ended[-1]
        free = max(submit, ended[-1]) if behind else submit
        before = submit - moved.get(batch, 0)
        earlier = (max(before, sooner[-1]) if behind else before) + begin - free
        ended.append(max(ends) + copying)
        sooner.append(earlier + ended[-1] - begin)
    computed = truth.submit_ns[step][-1]
    return {
        rank: max(0, max(ended) - max(max(sooner), *(computed[other] for other in range(plan.ranks) if other != rank)))
        for rank in range(plan.ranks)
    }


def lateness_put_in(plan: Scenario, truth: ScenarioTruth) -> dict[str, Counter[int]]:
    """Lateness by cause and rank, counted the plain way: the latest batch of each step."""
    found: dict[str, Counter[int]] = {cause: Counter() for cause in (*CAUSES, "carried")}
    for step in range(plan.steps):
        came_late = late_arrival(plan, truth, step)
        worst: dict[str, tuple[int, int]] = {}
        late: dict[int, tuple[int, int]] = {}
        for batch in range(plan.batches):
            for cause, moments in (
                ("compute", truth.submit_ns), ("negotiation", truth.agreed_ns), ("network", truth.end_ns)
            ):  # fmt: skip
                row = moments[step][batch]
                order = sorted(range(plan.ranks), key=lambda rank: (row[rank], rank))
                last, second = order[-1], order[-2]
                lateness = row[last] - row[second]
                if batch in came_late and cause != "network":
                    last, lateness = came_late[batch] if cause == "negotiation" else (last, 0)
                if cause == "compute":
                    released = truth.released_ns[step - 1] if step else None
                    carried = 0 if released is None else min(lateness, max(0, released[last] - released[second]))
                    if lateness:
                        worst["carried"] = max(worst.get("carried", (0, 0)), (carried, last))
                    lateness -= carried
                    late[batch] = (lateness, last)
                if lateness:
                    worst[cause] = max(worst.get(cause, (0, 0)), (lateness, last))
        if "compute" in worst:
            lateness, rank = worst["compute"]
            behind: dict[int, tuple[int, int]] = {}
            for batch, row in enumerate(truth.submit_ns[step]):
                first, second = sorted(row)[-2:][::-1]
                behind[batch] = (min(first - second, lateness), row.index(first))
            own = {
                batch: ns if last == rank and ns else behind[batch][0] * (behind[batch][1] == rank)
                for batch, (ns, last) in late.items()
            }
            gain = gain_of_a_step(plan, truth, step, own)[rank]
            together = {batch: max(ns, behind[batch][0]) for batch, (ns, _) in late.items()}
            most = max(gain_of_a_step(plan, truth, step, together).values())
            worst["compute"] = max((min(ns, gain if last == rank else most), last) for ns, last in late.values())
        for cause, (lateness, rank) in worst.items():
            found[cause][rank] += lateness
    return found


def test_a_rank_that_never_waits_is_late_where_the_others_only_waited() -> None:
    def spans(rank: int, rows: dict[Stage, tuple[int, int]]) -> list[SpanTable]:
        tables = [make_spans([moments], stage=int(stage), rank=rank) for stage, moments in rows.items()]
        return [replace(one, batch=np.full(1, one.stage[0] != Stage.STEP, dtype=np.int64)) for one in tables]

    punctual = {Stage.STEP: (0, 100), Stage.NEGOTIATE: (20, 90), Stage.COMMUNICATE: (90, 95), Stage.WAIT: (30, 95)}
    slow = {Stage.STEP: (0, 110), Stage.NEGOTIATE: (88, 89), Stage.COMMUNICATE: (90, 95)}
    trace = Trace(concatenate([*spans(0, punctual), *spans(1, slow)]), (), (), "merged", "job")
    found = [(one.cause, one.rank, one.begin_ns, one.end_ns) for one in critical_path(trace).stretches]
    # Rank 0 had submitted at 20 and was blocked from 30 on; rank 1 submitted at 88.
    assert found == [("compute", 1, 0, 30), ("late", 1, 30, 88), ("compute", 1, 88, 110)]


@settings(max_examples=40, deadline=None)
@given(plan=plans().filter(lambda plan: plan.ranks > 1))
def test_lateness_comes_back_by_rank_and_cause(plan: Scenario) -> None:
    trace, truth = trace_of(plan)
    expected = lateness_put_in(plan, truth)
    found = stragglers(trace)
    for cause in CAUSES:
        totals = {rank.rank: rank.causes[cause].total_ns for rank in found.ranks if rank.causes[cause].total_ns}
        assert totals == {rank: total for rank, total in expected[cause].items() if total}


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("compute", {"slow_compute": {2: 2_000_000}}),
        ("negotiation", {"slow_control": {2: 400_000}}),
        ("network", {"slow_link": {2: 400_000}}),
    ],
)
def test_a_slow_rank_is_found_by_its_cause_and_nobody_else(cause: str, change: dict[str, Any]) -> None:
    trace, _ = trace_of(Scenario(steps=40, **change))
    found = stragglers(trace)
    assert {rank.rank: rank.verdict for rank in found.ranks if rank.verdict} == {2: (cause,)}
    assert found.significance[cause] < 0.001
    assert found.worst_steps[0].rank == 2
    if cause == "compute":
        assert (found.tensors[0].rank, found.tensors[0].rank_times) == (2, 40)


UNKNOWN_CLOCKS = {"host-b": HostClock(offset_ns=7_000_000, error_ns=3_000_000)}


def joined(plan: Scenario, folder: Path, with_awaits: bool = True) -> Trace:
    """The merged trace of a job whose ranks wrote parts on their own clocks."""
    job, _ = simulate(plan)
    if not with_awaits:
        spans = {rank: table.take(table.stage != Stage.AWAIT) for rank, table in job.spans.items()}
        job = replace(job, spans=spans)
    folder.mkdir()
    merge(job.write(folder), folder / "merged.json")
    return load(folder / "merged.json")


def test_what_ranks_recorded_of_waiting_names_a_straggler_that_no_clock_shows(tmp_path: Path) -> None:
    """Clocks are right within 3 ms, the rank is late by 1 ms."""
    plan = Scenario(steps=40, slow_compute={3: 1_000_000}, hosts=TWO_HOSTS, clocks=UNKNOWN_CLOCKS, scheduled=True)
    found = stragglers(joined(plan, tmp_path / "known"))
    assert {rank.rank: rank.verdict for rank in found.ranks if rank.verdict} == {3: ("compute",)}
    late = found.ranks[3].causes["compute"]
    # Each step's latest batch: a millisecond less the others' jitter, and the 50 us until all knew of it.
    assert late.steps_last == 40
    assert late.total_ns == pytest.approx(40 * 1_000_000, rel=0.1)
    blind = joined(plan, tmp_path / "blind", with_awaits=False)
    # Rank 3 is surely behind rank 2, on its host, but not behind the others.
    assert stragglers(blind).ranks[3].causes["compute"].total_ns == 0
    assert {tensor.times - tensor.undecided for tensor in stragglers(blind).tensors} == {0}


def test_a_rank_whose_runtime_comes_late_is_no_slow_computer() -> None:
    """Rank 1 computes 0.4 ms longer, but all wait for rank 2, which had submitted before."""
    trace, truth = trace_of(Scenario(steps=40, slow_compute={1: 400_000}, slow_arrival={2: 2_000_000}, scheduled=True))
    found = stragglers(trace)
    assert {rank.rank: rank.verdict for rank in found.ranks if rank.verdict} == {2: ("negotiation",)}
    path = critical_path(trace)
    assert path.causes == dict(truth.causes())
    longest = path.contributions[0]
    assert (longest.cause, longest.rank) == ("control", 2)


def test_ranks_that_name_different_ones_prove_nothing() -> None:
    trace, _ = trace_of(Scenario(ranks=3, steps=2, slow_compute={2: 1_000_000}, scheduled=True))
    table = batch_table(trace)
    assert set(table.awaited_peer.tolist()) == {2}
    waits = trace.spans.stage == Stage.AWAIT
    assert table.peer_wait_ns.tolist() == [
        int(trace.spans.duration_ns[waits & (trace.spans.batch == batch)].min()) for batch in table.ids.tolist()
    ]
    for rank in (0, 1):  # one of the others has recorded no wait: it came as late
        without = replace(trace, spans=trace.spans.take(~(waits & (trace.spans.rank == rank))))
        assert set(batch_table(without).awaited_peer.tolist()) == {-1}
    texts = tuple(text.replace('"peer":2', '"peer":1') for text in trace.spans.fact_texts)
    fooled = replace(trace, spans=replace(trace.spans, fact_texts=texts))
    assert set(batch_table(fooled).awaited_peer.tolist()) == {-1}  # rank 1 did not wait for itself


@pytest.mark.parametrize("seed", range(8))
def test_chance_is_called_chance(seed: int) -> None:
    trace, _ = trace_of(Scenario(steps=60, jitter_ns=2_000_000, seed=seed))
    found = stragglers(trace)
    assert [rank.verdict for rank in found.ranks] == [()] * 4
    assert found.significance["compute"] > 0.001


def test_clocks_far_apart_change_nothing_but_what_their_error_hides(tmp_path: Path) -> None:
    plan = Scenario(steps=20, slow_compute={3: 2_000_000}, hosts=TWO_HOSTS, clocks=SKEWED)
    job, truth = simulate(plan)
    merge(job.write(tmp_path), tmp_path / "merged.json")
    trace = load(tmp_path / "merged.json")
    found = stragglers(trace)
    assert {rank.rank: rank.verdict for rank in found.ranks if rank.verdict} == {3: ("compute",)}
    assert {host.host: host.steps_last["compute"] for host in found.hosts} == {"host-a": 0, "host-b": 20}
    path = critical_path(trace)
    assert path.length_ns == pytest.approx(truth.runtime_ns, abs=5)
    assert path.causes["late"] == pytest.approx(truth.causes()["late"], abs=200)
    assert float(efficiency(trace).efficiency) == pytest.approx(sum(truth.useful_ns) / 4 / truth.runtime_ns, rel=1e-6)


def test_diff_finds_what_was_changed_and_only_that() -> None:
    before, _ = trace_of(Scenario(steps=40))
    after, _ = trace_of(Scenario(steps=40, slow_compute={1: 1_500_000}, seed=1))
    found = compare(before, after)
    by_name = {(change.kind, change.what): change for change in found.changes}
    slowed = by_name["compute", "rank 1"]
    assert slowed.verdict == "slower"
    assert slowed.low_ns <= slowed.difference_ns <= slowed.high_ns
    assert slowed.difference_ns == pytest.approx(1_500_000, abs=50_000)
    assert by_name["step", "step"].verdict == "slower"
    assert [by_name["compute", f"rank {rank}"].verdict for rank in (0, 2, 3)] == ["same"] * 3
    assert by_name["stage", "communicate"].verdict == "same"
    verdicts = [change.verdict for change in found.changes]
    assert verdicts == sorted(verdicts, key=("slower", "faster", "unclear", "same").index)  # worst first
    back = compare(after, before)
    assert {change.verdict for change in back.changes if (change.kind, change.what) == ("compute", "rank 1")} == {
        "faster"
    }


def test_a_row_is_the_same_only_where_its_interval_holds_zero() -> None:
    key = "step", "step"
    first, apart, level = np.array([10.0, 10.1, 9.9]), np.array([12.0, 12.1, 11.9]), np.array([9.9, 10.2, 9.8])
    [unclear] = contrast({key: first}, {key: apart})
    assert unclear.low_ns > 0 and unclear.p_value > 0.05  # the ranks of three and three tell no more
    assert unclear.verdict == "unclear"
    [same] = contrast({key: first}, {key: level})
    assert same.low_ns <= 0 <= same.high_ns and same.verdict == "same"


def test_diff_compares_the_users_ranges_rank_by_rank() -> None:
    trace, _ = trace_of(Scenario(ranks=2, steps=40))
    found = compare(
        with_ranges(trace, lambda rank, _: 1000), with_ranges(trace, lambda rank, _: 6000 if rank else 1000)
    )
    ranges = {change.what: change for change in found.changes if change.kind == "range"}
    assert {what: change.difference_ns for what, change in ranges.items()} == {
        "load batch, rank 0": 0,
        "load batch, rank 1": 5000,
    }
    assert ranges["load batch, rank 1"].verdict == "slower"
    assert ranges["load batch, rank 0"].verdict == "same"


def test_equal_runs_are_the_same() -> None:
    found = compare(trace_of(Scenario(steps=40))[0], trace_of(Scenario(steps=40, seed=9))[0])
    by_chance = [change for change in found.changes if change.low_ns > 0 or change.high_ns < 0]  # 1 of 20 is expected
    assert all(change.verdict == ("unclear" if change in by_chance else "same") for change in found.changes)
    assert (found.only_first, found.only_second) == ((), ())


@settings(max_examples=40, deadline=None)
@given(plan=plans())
def test_phases_of_a_tensor_follow_one_another_and_sums_match(plan: Scenario) -> None:
    trace, _ = trace_of(plan)
    for rank in trace.ranks:
        spans = trace.spans.of_rank(rank)
        by_stage = {}
        for stage in (Stage.NEGOTIATE, Stage.QUEUE, Stage.COPY_IN, Stage.COPY_OUT):
            chosen = spans.of_stage(stage)
            chosen = chosen.take(np.lexsort((chosen.tensor, chosen.batch)))
            by_stage[stage] = chosen
            assert len(chosen) == plan.steps * plan.batches * plan.tensors_per_batch
        order = [by_stage[stage] for stage in (Stage.NEGOTIATE, Stage.QUEUE, Stage.COPY_IN, Stage.COPY_OUT)]
        assert np.array_equal(order[0].end_ns, order[1].begin_ns)
        assert np.all(order[1].end_ns <= order[2].begin_ns)
        assert np.all(order[2].end_ns <= order[3].begin_ns)
        run = spans.of_stage(Stage.COMMUNICATE)
        assert int(run.bytes.sum()) == int(order[0].bytes.sum())
    table = batch_table(trace)
    assert np.all(table.submit <= table.agreed)
    assert np.all(table.agreed <= table.start)
    assert np.all(table.start <= table.begin)
    assert np.all(table.begin < table.end)
    assert np.all(table.end <= table.done)
    assert np.all(table.begin.max(axis=1) < table.end.min(axis=1))  # nothing is received before it was sent
