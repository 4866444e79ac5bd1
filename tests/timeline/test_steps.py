"""Where the start-up ends: what is left out is said, and no later stall is taken for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune import layout
from ringtune.timeline.analysis.comparison import compare
from ringtune.timeline.analysis.headline import comparison_headline, headline
from ringtune.timeline.analysis.steps import counted, select_steps, startup
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.cli import timeline
from ringtune.timeline.spans import Trace, concatenate
from ringtune.timeline.vocabulary import Stage
from tests.timeline.helpers import make_spans, trace_of
from tests.timeline.scenario import Scenario, simulate

MS = 1_000_000


def slow_begin(ranks: int, lengths: list[int]) -> dict[tuple[int, int], int]:
    """The first steps take longer on all ranks, each a little differently."""
    return {(rank, step): ns + rank * 100_000 for step, ns in enumerate(lengths) for rank in range(ranks)}


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(1, 5),
    lengths=st.lists(st.integers(20 * MS, 5_000 * MS), max_size=4).map(lambda found: sorted(found, reverse=True)),
    steps=st.integers(12, 60),
    stall=st.integers(5, 11),
    seed=st.integers(0, 10**6),
)
def test_the_first_steps_that_are_long_on_all_ranks_are_the_startup(
    ranks: int, lengths: list[int], steps: int, stall: int, seed: int
) -> None:
    # Each is long also against the next ones, as start-ups are.
    lengths = [ns * 4 ** (len(lengths) - place) for place, ns in enumerate(lengths)]
    pauses = {**slow_begin(ranks, lengths), (ranks - 1, stall): 200 * MS}
    trace, _ = trace_of(Scenario(ranks=ranks, steps=steps, pauses=pauses, seed=seed))
    found = counted(trace)
    if not lengths:
        assert found.startup is None and found.trace is trace
        return
    assert found.startup is not None
    assert (found.startup.first, found.startup.last) == (0, len(lengths) - 1)
    assert found.startup.length_ns >= sum(lengths)
    assert int(found.trace.spans.step.min()) == len(lengths)
    if ranks > 1:
        (verdict,) = stragglers(found.trace).verdicts
        assert (verdict.rank, verdict.stretches) == (ranks - 1, ((stall, stall),))


@pytest.mark.parametrize("steps", [2, 3])
def test_too_few_steps_tell_no_startup(steps: int) -> None:
    assert startup(trace_of(Scenario(steps=steps, pauses=slow_begin(4, [900 * MS])))[0]) is None


def test_a_rank_that_is_late_from_the_first_step_on_is_no_startup() -> None:
    late = {(1, step): 12 * MS for step in range(40)}
    trace, _ = trace_of(Scenario(steps=80, pauses=late))
    assert startup(trace) is None
    (verdict,) = stragglers(trace).verdicts
    assert (verdict.rank, verdict.stretches) == (1, ((0, 39),))


def test_a_stall_of_one_rank_behind_the_startup_counts() -> None:
    trace, _ = trace_of(Scenario(steps=20, pauses={**slow_begin(4, [900 * MS]), (2, 1): 500 * MS}))
    found = counted(trace)
    assert found.startup is not None and found.startup.last == 0
    (verdict,) = stragglers(found.trace).verdicts
    assert (verdict.rank, verdict.stretches) == (2, ((1, 1),))


def test_a_stall_in_the_first_step_is_left_out_but_not_in_silence() -> None:
    found = startup(trace_of(Scenario(steps=6, pauses={(3, 0): 900 * MS}))[0])
    assert found is not None
    assert found.sentence() == "step 0 (start-up, 913 ms, of which rank 3 alone took 900 ms) left out"


def test_a_recording_of_later_steps_has_no_startup() -> None:
    trace, _ = trace_of(Scenario(steps=40, pauses=slow_begin(4, [0] * 20 + [900 * MS])))
    assert startup(select_steps(trace, 20, None)) is None


def test_the_startup_hides_no_change_between_runs() -> None:
    """Its spread is larger than what changed."""
    runs = [
        trace_of(Scenario(steps=60, seed=seed, slow_compute=slow, pauses=slow_begin(4, [ns])))[0]
        for seed, (slow, ns) in enumerate((({}, 2_000 * MS), ({1: 3 * MS}, 1_500 * MS)))
    ]
    found = compare(*(counted(run).trace for run in runs))
    by_name = {(change.kind, change.what): change for change in found.changes}
    assert by_name["step", "step"].verdict == by_name["compute", "rank 1"].verdict == "slower"
    assert comparison_headline(found).startswith("a step of B is slower by 2")
    assert "compute rank 1 by 3.00 ms" in comparison_headline(found)
    assert comparison_headline(found).endswith(": ringtune timeline stragglers B")
    assert "takes as long" in comparison_headline(compare(runs[0], runs[0]))


def pausing(step_ns: int, pauses: dict[int, int]) -> Trace:
    """Two ranks of 50 steps: where rank 0 pauses after its gradients were sent, rank 1 waits in its next step."""
    tables = []
    for rank in range(2):
        lengths = np.array([step_ns + pauses.get(step - rank, 0) for step in range(50)])
        ends = np.cumsum(lengths)
        spans = [*zip((ends - lengths).tolist(), ends.tolist(), strict=True)]
        tables.append(replace(make_spans(spans, stage=Stage.STEP, rank=rank), step=np.arange(50)))
    return Trace(concatenate(tables), (), (), "merged")


def test_a_pause_that_two_ranks_have_in_different_steps_costs_once() -> None:
    plain, paused = pausing(10 * MS, {}), pausing(10 * MS, {20: 1_000 * MS, 40: 1_000 * MS})
    found = compare(plain, paused)
    step = next(change for change in found.changes if change.kind == "step")
    assert step.second_ns == pytest.approx((50 * 10 + 2 * 1_000) * MS / 50)
    assert (found.second_long.steps, found.second_long.extra_ns) == ((20, 40), 2_000 * MS)
    begin = "the usual step of B takes as long as one of A, but 2 of 50 steps of B (20, 40) took 2.00 s longer, 80.0 %"
    assert comparison_headline(found).startswith(begin)
    slower = compare(pausing(10 * MS, {20: 1_000 * MS, 40: 1_000 * MS}), pausing(25 * MS, {}))
    begin = "the usual step takes 10.0 ms in A and 25.0 ms in B, but 2 of 50 steps of A (20, 40) took 2.00 s longer"
    assert comparison_headline(slower).startswith(begin)


@pytest.mark.parametrize(
    ("slow_ms", "limit", "code", "said"),
    [
        (3, "5%", 3, "more than 5 % slower"),
        (3, "5", 3, "more than 5 % slower"),
        (3, "60 %", 0, "not 60 % slower"),
        (0, "5%", 0, "not 5 % slower"),
        (0, "0.01", 0, "not surely 0.01 % slower"),
        (0, "fast", 2, "expected a share of a step"),
    ],
)
def test_a_comparison_fails_where_a_step_is_surely_slower(
    slow_ms: int, limit: str, code: int, said: str, tmp_path: Path
) -> None:
    for name, slow in (("a", {}), ("b", {1: slow_ms * MS})):
        job, _ = simulate(Scenario(ranks=3, steps=40, seed=len(slow) + ord(name), slow_compute=slow))
        job.write(layout.timeline_parts(tmp_path / name))
    paths = [str(tmp_path / name) for name in ("a", "b")]
    done = CliRunner().invoke(timeline, ["diff", *paths, "--fail-if-slower", limit])
    assert (done.exit_code, said in done.output) == (code, True), done.output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a start-up of two steps, and a stall in step 9."""
    plan = Scenario(ranks=3, steps=20, pauses={**slow_begin(3, [4_000 * MS, 400 * MS]), (1, 9): 300 * MS})
    simulate(plan)[0].write(layout.timeline_parts(tmp_path / "run"))
    return tmp_path / "run"


@pytest.mark.parametrize("command", [["summary"], ["stragglers"], ["critical-path"], ["efficiency"], ["diff"]])
def test_every_analysis_opens_with_one_sentence_and_says_what_it_leaves_out(command: list[str], run: Path) -> None:
    words = [*command, *[str(run)] * (2 if command == ["diff"] else 1)]

    def said(*more: str) -> str:
        return CliRunner().invoke(timeline, [*words, *more], catch_exceptions=False).output

    first, second = said().splitlines()[:2]
    if command == ["diff"]:
        assert first.startswith("a step of B takes as long as one of A")
    else:
        assert "lost to rank 1 in 1 stall (step 9), by compute: look at rank 1 in step 9" in first
    which = "A: " if command == ["diff"] else ""
    assert second == f"{which}steps 0-1 (start-up, 4.43 s) left out; --all-steps counts them"
    assert "left out" not in said("--all-steps") + said("--steps", "1:")
    document, whole = json.loads(said("--json")), json.loads(said("--json", "--all-steps"))
    assert document["headline"] == first
    one = document["startup"][0] if command == ["diff"] else document["startup"]
    assert (one["first"], one["last"]) == (0, 1)
    assert whole["startup"] in (None, [None, None])


def test_without_a_rank_to_blame_the_opening_names_waiting() -> None:
    even, _ = trace_of(Scenario(ranks=2, steps=30))
    assert headline(even).startswith(
        "ranks waited 16.3 % of the time (15.2 % exposed communication, 0.1 % for late ranks)"
    )
    assert headline(even).endswith("search better settings with ringtune tune")
    alone, _ = trace_of(Scenario(ranks=1, steps=30, compute_ns=5_000 * MS, transfer_ns=1))
    assert headline(alone).startswith("ranks computed all of the time")
    assert headline(select_steps(alone, 90, None)) == ""
