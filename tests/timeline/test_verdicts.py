"""What was planted is what the verdicts say: rank, steps, cause, cost; and noise accuses nobody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringtune.timeline.analysis.lateness import Late
from ringtune.timeline.analysis.patterns import MATERIAL, Job, patterns
from ringtune.timeline.analysis.significance import binomial_tail, holm
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.analysis.verdicts import Verdict, sentence
from ringtune.timeline.vocabulary import Stage
from tests.timeline.helpers import trace_of, with_ranges
from tests.timeline.scenario import Scenario

MS = 1_000_000
STEPS = 80


@st.composite
def plants(draw: st.DrawFn) -> tuple[Scenario, int, set[int]]:
    """A job, the rank that is late, and in which steps; each by 4 ms to 3 s, in steps of 13 to 30 ms."""
    ranks, seed = draw(st.integers(2, 6)), draw(st.integers(0, 10**6))
    rank = draw(st.integers(0, ranks - 1))
    if draw(st.booleans()):  # stalls, no two side by side
        steps = {2 * step for step in draw(st.sets(st.integers(1, STEPS // 2 - 1), min_size=1, max_size=4))}
        length = draw(st.integers(30 * MS, 3_000 * MS))
    else:
        first = draw(st.integers(1, STEPS - 8))
        steps = set(range(first, draw(st.integers(first + 6, STEPS - 1))))
        length = draw(st.integers(6 * MS, 100 * MS))
    pauses = {(rank, step): length for step in steps}
    return Scenario(ranks=ranks, steps=STEPS, jitter_ns=300_000, pauses=pauses, seed=seed), rank, steps


# By chance rank 1 is also last in most other steps, by less than a percent of a step.
_OFTEN_LAST = Scenario(
    ranks=4, steps=STEPS, jitter_ns=300_000, pauses={(1, step): 30 * MS for step in (2, 4, 6, 8)}, seed=364
)


@settings(max_examples=20, deadline=None)
@example(planted=(_OFTEN_LAST, 1, {2, 4, 6, 8}))
@given(planted=plants())
def test_the_first_verdict_is_what_was_planted(planted: tuple[Scenario, int, set[int]]) -> None:
    plan, rank, steps = planted
    trace, _ = trace_of(plan)
    found = stragglers(trace)
    worst, length = found.verdicts[0], next(iter(plan.pauses.values()))
    assert (worst.rank, worst.cause, worst.late_steps) == (rank, "compute", len(steps))
    named = {step for first, last in worst.stretches for step in range(first, last + 1)}
    if len(steps) > 0.95 * STEPS:
        assert worst.pattern == "always"
    elif max(steps) - min(steps) == len(steps) - 1 and len(steps) > 1:
        assert (worst.pattern, worst.stretches) == ("steps", ((min(steps), max(steps)),))
    else:
        assert (worst.pattern, named) == ("stalls", steps)
    assert worst.cost_ns == pytest.approx(length * len(steps), abs=300_000 * len(steps))
    assert worst.share == worst.cost_ns / found.job_ns
    assert worst.worst_step in steps
    assert {one.rank for one in found.verdicts} == {rank}
    assert [one.verdict for one in found.ranks] == [("compute",) if n == rank else () for n in range(plan.ranks)]


def test_two_ranks_are_accused_each_of_its_own_worst_first() -> None:
    pauses = {(0, 20): 500 * MS, (0, 61): 700 * MS} | {(2, step): 12 * MS for step in range(30, 50)}
    found = stragglers(trace_of(Scenario(ranks=4, steps=STEPS, pauses=pauses))[0])
    assert [(one.rank, one.pattern, one.stretches) for one in found.verdicts] == [
        (0, "stalls", ((20, 20), (61, 61))),
        (2, "steps", ((30, 49),)),
    ]


@st.composite
def faults(draw: st.DrawFn) -> Scenario:
    """A job of two hosts of which any rank may be late in any way, several at once."""
    ranks, steps = draw(st.integers(2, 6)), 20
    pauses: dict[tuple[int, int], int] = {}
    for rank in range(ranks):
        late = draw(st.sampled_from(((), range(1, steps), range(5, 15), (4, 12), (12,))))
        pauses |= {(rank, step): draw(st.sampled_from((2, 8, 30, 500))) * MS for step in late}
    slow = {
        kind: {draw(st.integers(0, ranks - 1)): draw(st.sampled_from((3, 10))) * MS}
        for kind in draw(st.sets(st.sampled_from(("slow_link", "slow_control", "late_first"))))
    }
    hosts = ("a",) * (ranks // 2) + ("b",) * (ranks - ranks // 2)
    compute = draw(st.sampled_from((2, 12))) * MS
    plan = Scenario(ranks, steps, compute_ns=compute, pauses=pauses, hosts=hosts, scheduled=draw(st.booleans()))
    return replace(plan, slow_arrival=slow.get("slow_control", {}) if plan.scheduled else {}, **slow)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(plan=faults(), numbered=st.booleans())
def test_no_time_of_the_job_is_counted_twice(plan: Scenario, numbered: bool) -> None:
    trace = trace_of(plan)[0]
    if not numbered:  # as of a program whose steps nobody marks
        spans = trace.spans.take(~trace.spans.in_stage(Stage.STEP))
        trace = replace(trace, spans=replace(spans, step=np.full_like(spans.step, -1)))
    found = stragglers(trace, permuted=False)
    shares = [one.share for one in (*found.verdicts, *found.turns)]
    assert sum(shares) <= 1 and all(share >= MATERIAL for share in shares)
    assert [one.share for one in found.verdicts] == [one.cost_ns / found.job_ns for one in found.verdicts]


def test_a_group_costs_what_is_beyond_its_rank_that_is_late_alone() -> None:
    slow = {(0, step): 30 * MS for step in range(20)} | {(1, step): 14 * MS for step in range(20)}
    plan = Scenario(ranks=6, steps=20, compute_ns=2 * MS, transfer_ns=MS // 10, pauses=slow)
    alone, together = stragglers(trace_of(plan)[0]).verdicts
    assert (alone.rank, alone.ranks, together.ranks) == (0, (), (0, 1))
    assert alone.cost_ns == pytest.approx(20 * 16 * MS, rel=0.05)
    assert together.cost_ns == pytest.approx(20 * 14 * MS, rel=0.05)


def test_batches_of_no_known_step_that_wait_at_the_same_time_cost_the_job_once() -> None:
    trace = trace_of(Scenario(ranks=3, steps=20, pauses={(1, step): 30 * MS for step in range(20)}))[0]
    spans = trace.spans.take(~trace.spans.in_stage(Stage.STEP))
    found = stragglers(replace(trace, spans=replace(spans, step=np.full_like(spans.step, -1)))).verdicts
    # Three batches a step: the others have submitted the first after 10/3 ms, rank 1 the last one after 40 ms.
    assert [one.rank for one in found] == [1]
    assert found[0].cost_ns == pytest.approx(20 * (40 - 10 / 3) * MS, rel=0.02) and found[0].share < 1


def test_a_rank_that_is_always_late_and_pauses_once_is_accused_of_both() -> None:
    plan = Scenario(steps=STEPS, slow_compute={1: 4 * MS}, pauses={(1, 33): 900 * MS})
    found = stragglers(trace_of(plan)[0])
    assert [(one.rank, one.pattern, one.stretches) for one in found.verdicts] == [
        (1, "stalls", ((33, 33),)),
        (1, "always", ()),
    ]


def test_a_rank_that_is_late_in_every_third_step_is_late_often() -> None:
    pauses = {(1, step): 20 * MS for step in range(0, STEPS, 3)}
    (found,) = stragglers(trace_of(Scenario(steps=STEPS, pauses=pauses))[0]).verdicts
    assert (found.rank, found.pattern, found.late_steps) == (1, "often", len(pauses))


@pytest.mark.parametrize(("late_ns", "accused"), [(50_000, 0), (400_000, 1)])
def test_less_than_a_percent_of_a_step_accuses_nobody(late_ns: int, accused: int) -> None:
    """Significant it is, in both cases."""
    found = stragglers(trace_of(Scenario(steps=60, jitter_ns=1000, slow_compute={2: late_ns}))[0])
    assert found.ranks[2].causes["compute"].p_value < 1e-6
    assert (len(found.verdicts), found.turns) == (accused, ())
    assert found.sentences()[0].startswith("no straggler") is not accused


@st.composite
def noises(draw: st.DrawFn) -> np.ndarray:
    """Moments of ranks (columns) in steps (rows), equal but for noise."""
    shape = (draw(st.sampled_from((40, 200, 600))), draw(st.integers(2, 8)))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    scale = 10 * MS * draw(st.sampled_from((0.01, 0.1, 0.5)))
    kind = draw(st.sampled_from(("exponential", "normal", "uniform", "weibull")))
    noise = random.weibull(0.8, shape) if kind == "weibull" else getattr(random, kind)(size=shape)
    return 10 * MS + scale * noise


@settings(max_examples=80, deadline=None, derandomize=True)
@given(moments=noises())
def test_noise_has_no_pattern(moments: np.ndarray) -> None:
    order, rows = np.argsort(moments, axis=1), np.arange(len(moments))
    last, second = order[:, -1], order[:, -2]
    lateness = (moments[rows, last] - moments[rows, second]).astype(np.int64)
    late = Late(rows, last, moments.max(axis=1), lateness, np.full(len(rows), 1 / moments.shape[1]))
    steps, ranks = moments.max(axis=1), moments.shape[1]
    tests = holm([binomial_tail(int((last == column).sum()), len(rows), 1 / ranks) for column in range(ranks)])
    job = Job(int(steps.sum()), float(np.median(steps)), ranks)
    # A test at 1 % errs once in a hundred: who is last by chance that often is left out.
    found = [patterns(late, column, tests[column], job) for column in range(ranks) if tests[column] >= 0.01]
    assert found == [[]] * len(found)


def test_lateness_by_turns_accuses_nobody_and_is_not_kept_silent() -> None:
    found = stragglers(trace_of(Scenario(steps=STEPS, jitter_ns=8 * MS, seed=3))[0])
    assert found.verdicts == ()
    (turns,) = found.turns
    total = sum(rank.causes["compute"].total_ns for rank in found.ranks)
    assert (turns.cause, turns.total_ns, turns.share) == ("compute", total, total / found.job_ns)
    assert "by turns" in found.sentences()[0]


@pytest.mark.parametrize(
    ("name", "stage", "said"),
    [
        ("load batch", Stage.RANGE, "by compute in `load batch`"),
        ("data loading", Stage.RANGE, "by data loading"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Stage.OTHER, "by data loading"),
    ],
)
def test_the_range_in_which_the_time_went_is_named(name: str, stage: Stage, said: str) -> None:
    late = {(2, step): 20 * MS for step in range(6, 12)}
    trace, _ = trace_of(Scenario(steps=16, pauses=late))
    trace = with_ranges(trace, lambda rank, step: MS + late.get((rank, step), 0), name, stage)
    trace = with_ranges(trace, lambda *_: 8 * MS, "forward", stage)  # as long everywhere
    (found,) = stragglers(trace).verdicts
    assert (found.rank, found.stretches, found.where) == (2, ((6, 11),), name)
    assert said in sentence(found)


def test_a_pause_between_the_last_submit_and_the_end_of_a_step_is_of_that_step() -> None:
    """Rank 0's gradients were out; the next step's first batch comes late on it."""
    trace, _ = trace_of(Scenario(ranks=2, steps=12, pauses={(0, 7): 300 * MS}))
    spans = trace.spans
    steps = spans.in_stage(Stage.STEP) & (spans.rank == 0)
    begin = int(spans.begin_ns[steps & (spans.step == 7)][0])
    middle = begin + 200 * MS  # step 6 lasts into what was computed in step 7
    ends, begins = spans.end_ns.copy(), spans.begin_ns.copy()
    ends[steps & (spans.step == 6)] = begins[steps & (spans.step == 7)] = middle
    moved = type(trace)(type(spans)(**{**vars(spans), "begin_ns": begins, "end_ns": ends}), (), trace.parts, "merged")
    (found,) = stragglers(moved).verdicts
    assert (found.rank, found.stretches) == (0, ((6, 6),))


def verdict(**changes: object) -> Verdict:
    about = {"rank": 0, "cause": "compute", "where": "", "pattern": "stalls", "stretches": ((61, 61), (121, 121)),
             "late_steps": 2, "steps": 200, "cost_ns": 2_000 * MS, "share": 0.37, "worst_step": 61,
             "p_value": 1.0}  # fmt: skip
    return Verdict(**{**about, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "37.0 % of the job (2.00 s) was lost to rank 0 in 2 stalls (steps 61, 121), by compute: look at rank 0 in "
             "step 61"),
        ({"stretches": ((40, 40),), "worst_step": 40}, "rank 0 in 1 stall (step 40), by compute"),
        ({"stretches": tuple((n, n) for n in range(9))}, "in 9 stalls (steps 0, 1, 2, 3 and 5 more)"),
        ({"pattern": "steps", "stretches": ((60, 119),), "where": "x"}, "in steps 60-119, by compute in `x`"),
        ({"pattern": "always", "stretches": (), "late_steps": 190}, "rank 0 always (in 190 of 200 steps), by"),
        ({"pattern": "often", "stretches": (), "late_steps": 90}, "rank 0 in 90 of 200 steps, by"),
        ({"cause": "network"}, "look at rank 0's link: ringtune check --network"),
        ({"cause": "network", "one_host": True}, "look whether the cores of rank 0's host are all busy in step 61"),
        ({"worst_step": -1, "stretches": ()}, "look at rank 0"),
    ],
)  # fmt: skip
def test_sentences(changes: dict[str, object], said: str) -> None:
    assert said in sentence(verdict(**changes))
