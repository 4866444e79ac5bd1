"""The pure machine, with a fake advisor on noise-free jobs: exact sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringtune.errors import InvariantError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.stats import StepStats
from ringtune.tuner.advice import Stored, Workload
from ringtune.tuner.landscape import Flat, SimulatedRun
from ringtune.tuner.online import OnlineTuner
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.records import NoteRecord, ResultRecord, StartRecord, TrialRecord
from ringtune.tuner.space import Space, Surroundings
from tests.tuner.jobs import FAST, QUIET, SLOW, FakeAdvisor, Table, play, session

ENOUGH = Stored(None, 9)
"""So many stored trials that no start points are needed."""


def trials(tuner: OnlineTuner) -> list[TrialRecord]:
    return [record for record in tuner.take_records() if isinstance(record, TrialRecord)]


def test_records_of_a_whole_session() -> None:
    advisor = FakeAdvisor([FAST, SLOW], stored=ENOUGH)
    tuner, run = session(advisor, {FAST: 8e6, SLOW: 30e6}, OnlineOptions(max_trials=3, steps_per_trial=6, world=2))
    play(tuner, run)
    start, *middle, result = tuner.take_records()
    assert start == StartRecord(DEFAULTS, "f" * 16, 2, ("fusion_bytes", "cycle_time_ns"), 3, 6, 9)
    assert advisor.workload == Workload(collectives=3, bytes=4096)
    seen = [(t.trial, t.source, t.state, t.knobs, t.step_ns.median) for t in middle if isinstance(t, TrialRecord)]
    assert seen == [
        (0, "default", "complete", DEFAULTS, 10e6),
        (1, "sampler", "complete", FAST, 8e6),
        (2, "sampler", "stopped-early", SLOW, 30e6),
        (3, "confirm", "complete", DEFAULTS, 10e6),
        (4, "confirm", "complete", FAST, 8e6),
    ]
    assert isinstance(result, ResultRecord)
    assert (result.decision, result.knobs, result.trials) == ("improved", FAST, 3)
    assert result.gain.median == pytest.approx(0.2)
    assert run.propose is not None and tuner.phase == "done"
    assert advisor.results == [result]
    assert [round(outcome.ratio, 3) for outcome in advisor.told] == [1.0, 0.8, 3.0]
    assert [outcome.token for outcome in advisor.told] == [None, 1, 2]


def test_the_result_carries_the_version_of_the_knobs_that_stay() -> None:
    tuner, run = session(FakeAdvisor([FAST], stored=ENOUGH), {FAST: 8e6})
    play(tuner, run)
    for _ in range(5):
        run.next_step()
    assert tuner.result is not None
    assert (tuner.result.knobs, tuner.result.knobs_version) == (FAST, run.knobs_version)
    assert run.knobs == FAST


def test_every_trial_carries_the_version_it_ran_under() -> None:
    tuner, run = session(FakeAdvisor([FAST, SLOW], stored=ENOUGH), {FAST: 8e6})
    ran: dict[int, Knobs] = {0: DEFAULTS}
    while tuner.result is None:
        knobs = tuner.on_step(run.next_step())
        if knobs is not None:
            knobs_version = run.propose(knobs)
            ran[knobs_version] = knobs
            tuner.proposed(knobs_version)
    assert all(ran[trial.knobs_version] == trial.knobs for trial in trials(tuner))


def test_an_early_stop_takes_three_steps() -> None:
    options = OnlineOptions(max_trials=4, steps_per_trial=6, budget=None)
    tuner, run = session(FakeAdvisor([SLOW], stored=ENOUGH), {SLOW: 100e6}, options)
    play(tuner, run)
    stopped = [trial for trial in trials(tuner) if trial.state == "stopped-early"]
    assert [(trial.knobs, trial.steps) for trial in stopped] == [(SLOW, 3)]
    # 3 counted steps, 2 discarded ones and one until the default is back, 90 ms too long each.
    assert 5 * 90e6 <= tuner.lost_ns <= 7 * 90e6


def test_a_setting_is_left_when_the_budget_is_used_up() -> None:
    """20 steps of the default may be lost: the third step of 100 ms is one too many, and is the last one counted."""
    options = OnlineOptions(max_trials=4, steps_per_trial=6, budget=0.02, credit_steps=1000)
    tuner, run = session(FakeAdvisor([SLOW], stored=ENOUGH), {SLOW: 100e6}, options)
    play(tuner, run)
    assert [(trial.steps, trial.state) for trial in trials(tuner)] == [(6, "complete"), (1, "stopped-early")]
    # Three steps until it is seen, one more until the default is back, 90 ms too long each.
    assert 200e6 < tuner.lost_ns <= 4 * 90e6


def test_the_search_waits_until_a_trial_can_be_afforded() -> None:
    """The first setting costs 270 to 360 ms; 70 % of 20 % of the time reach 40 ms more after 200 to 300 steps."""
    options = OnlineOptions(max_trials=3, steps_per_trial=6, budget=0.2, credit_steps=200)
    other = Knobs(32 << 20, 20_000_000)
    tuner, run = session(FakeAdvisor([SLOW, other], stored=ENOUGH), {SLOW: 100e6, other: 10.5e6}, options)
    steps = play(tuner, run)
    assert len(tuner.trials) == 3
    assert 200 < steps < 400


def test_a_search_that_cannot_be_afforded_ends() -> None:
    options = OnlineOptions(max_trials=4, steps_per_trial=6, budget=0.001, credit_steps=1000, afford_steps=50)
    tuner, run = session(FakeAdvisor([SLOW], stored=ENOUGH), {SLOW: 100e6}, options)
    play(tuner, run)
    notes = [record.message for record in tuner.take_records() if isinstance(record, NoteRecord)]
    assert notes == ["the search ends: its budget of lost time is used up"]
    assert tuner.lost_ns == 0 and tuner.result is not None and tuner.result.decision == "keep-default"


@pytest.mark.parametrize(("left", "horizon", "made"), [(0.02, 10_000, 3), (0.004, 10_000, 1), (0.02, 40, 1)])
def test_the_search_ends_when_nothing_worth_a_trial_is_left(left: float, horizon: int, made: int) -> None:
    """A trial costs at least one step; 2 % over 40 steps are less, and 0.4 % no confirmation can show."""
    advisor = FakeAdvisor([FAST, SLOW], stored=ENOUGH, left=left)
    options = OnlineOptions(max_trials=3, steps_per_trial=6, horizon_steps=horizon)
    tuner, run = session(advisor, {FAST: 8e6}, options)
    play(tuner, run)
    assert len(tuner.trials) == made


def test_a_flat_job_keeps_the_default_and_says_so() -> None:
    tuner, run = session(FakeAdvisor([FAST], stored=ENOUGH))
    play(tuner, run)
    assert tuner.result is not None
    assert (tuner.result.decision, tuner.result.knobs) == ("keep-default", DEFAULTS)
    assert tuner.result.reason == "no other setting looked faster"
    assert run.knobs == DEFAULTS


class Fading(Table):
    """The tempting setting is fast for its first steps only: what a lucky sample looks like."""

    seen = 0

    def step_ns(self, knobs: Knobs) -> float:
        if knobs != FAST:
            return 10e6
        object.__setattr__(self, "seen", self.seen + 1)
        return 8e6 if self.seen < 10 else 10.5e6


def test_a_lucky_trial_is_not_believed() -> None:
    tuner = OnlineTuner(Space(), FakeAdvisor([FAST], stored=ENOUGH), OnlineOptions(max_trials=2, steps_per_trial=6))
    run = SimulatedRun(Fading({}), QUIET, DEFAULTS, 0)
    play(tuner, run)
    for _ in range(5):
        run.next_step()
    assert tuner.result is not None and tuner.result.decision == "keep-default"
    assert "no gain was confirmed; the best rival, fusion 2 MiB" in tuner.result.reason
    assert run.knobs == DEFAULTS


def test_steps_of_the_change_are_discarded() -> None:
    """The first steps under a new version of the knobs may be of any length without any effect on what is measured."""
    advisor = FakeAdvisor([FAST], stored=ENOUGH)
    tuner, run = session(advisor, {FAST: 8e6}, OnlineOptions(max_trials=2, steps_per_trial=6, budget=None))
    shift = 0
    settled, knobs_version = 0, 0
    while tuner.result is None:
        stats = run.next_step()
        settled = settled + 1 if stats.knobs_version == knobs_version else 1
        knobs_version = stats.knobs_version
        if knobs_version > 0 and settled <= 2:
            shift += 500_000_000
        begin = stats.begin_ns if settled > 2 or knobs_version == 0 else stats.begin_ns - 500_000_000
        knobs = tuner.on_step(StepStats(stats.step, knobs_version, begin, stats.end_ns))
        if knobs is not None:
            tuner.proposed(run.propose(knobs))
    assert shift > 0
    assert {round(trial.step_ns.high / 1e6, 3) for trial in trials(tuner)} == {10.0, 8.0}


def test_the_stored_best_comes_first_then_start_points() -> None:
    tuner, run = session(FakeAdvisor(stored=Stored(FAST, 2)), options=OnlineOptions(max_trials=16, steps_per_trial=6))
    play(tuner, run)
    made = [trial for trial in trials(tuner) if trial.source != "confirm"]
    assert [trial.source for trial in made] == ["default", "stored"] + ["start-point"] * 4
    assert made[1].knobs == FAST


def test_settings_of_the_model_come_before_start_points() -> None:
    tuner, run = session(
        FakeAdvisor(stored=Stored(None, 0, (FAST, SLOW))), options=OnlineOptions(max_trials=16, steps_per_trial=6)
    )
    play(tuner, run)
    made = [trial for trial in trials(tuner) if trial.source != "confirm"]
    assert [trial.source for trial in made] == ["default", "model", "model", "start-point", "start-point"]
    assert [trial.knobs for trial in made[1:3]] == [FAST, SLOW]


def test_switches_are_tried_from_the_best_setting_and_kept_where_they_help() -> None:
    """Without a step schedule it is faster; from there on the cache is tried too, and is slower."""
    faster = replace(FAST, step_schedule=0)
    space = Space.around(DEFAULTS, place=Surroundings())
    tuner = OnlineTuner(space, FakeAdvisor([FAST], stored=ENOUGH), OnlineOptions(max_trials=4, steps_per_trial=6))
    times = {FAST: 8e6, faster: 7e6, replace(faster, cache_capacity=0): 9e6}
    play(tuner, SimulatedRun(Table(times), QUIET, DEFAULTS, 0))
    made = [(trial.source, trial.knobs) for trial in tuner.trials]
    assert len(made) == 4, "switches count among the trials"
    assert made[2:] == [("switch", faster), ("switch", replace(faster, cache_capacity=0))]
    assert tuner.result is not None and tuner.result.knobs == faster


def test_a_well_known_job_needs_no_start_points() -> None:
    tuner, run = session(FakeAdvisor([SLOW], stored=Stored(FAST, 12)))
    play(tuner, run)
    made = [trial.source for trial in trials(tuner) if trial.source != "confirm"]
    assert made == ["default", "stored", "sampler"]


def test_the_budget_of_trials_holds() -> None:
    settings = [Knobs(1 << 20, 100_000 + 1000 * i) for i in range(50)]
    tuner, run = session(FakeAdvisor(settings), options=OnlineOptions(max_trials=7, steps_per_trial=4, patience=99))
    play(tuner, run)
    assert len(tuner.trials) == 7


def test_without_progress_the_search_ends() -> None:
    settings = [Knobs(1 << 20, 100_000 + 1000 * i) for i in range(50)]
    options = OnlineOptions(max_trials=40, steps_per_trial=4, patience=3)
    tuner, run = session(FakeAdvisor(settings, stored=ENOUGH), options=options)
    play(tuner, run)
    assert [trial.source for trial in tuner.trials] == ["default"] + ["sampler"] * 3


def test_training_goes_on_with_the_default_while_the_advisor_thinks() -> None:
    advisor = FakeAdvisor([FAST, SLOW], thinks=7, stored=ENOUGH)
    tuner, run = session(advisor, {FAST: 8e6}, OnlineOptions(max_trials=3, steps_per_trial=6))
    thinking = 0
    while tuner.result is None:
        stats = run.next_step()
        before = advisor._asked
        knobs = tuner.on_step(stats)
        if knobs is not None:
            tuner.proposed(run.propose(knobs))
        if advisor._asked > before > 0 and advisor._asked > 4:
            thinking += 1
            assert run.knobs == DEFAULTS
    assert thinking >= 6
    assert tuner.result.decision == "improved"


@pytest.mark.parametrize("when", ["at once", "later"])
def test_without_its_advisor_the_session_still_ends_with_what_is_confirmed(when: str) -> None:
    advisor = FakeAdvisor([SLOW] if when == "later" else [], stored=Stored(FAST, 12))
    if when == "at once":
        advisor.fail("optuna is not installed")
    tuner, run = session(advisor, {FAST: 8e6}, OnlineOptions(max_trials=9, steps_per_trial=6))
    play(tuner, run)
    notes = [record.message for record in tuner.take_records() if isinstance(record, NoteRecord)]
    assert len(notes) == 1 and ("optuna is not installed" in notes[0] or "out of ideas" in notes[0])
    assert tuner.result is not None and tuner.result.knobs == FAST


def test_an_advisor_that_never_answers_is_given_up() -> None:
    advisor = FakeAdvisor(thinks=10**9, stored=Stored(FAST, 12))
    options = OnlineOptions(max_trials=9, steps_per_trial=6, advisor_wait_ns=1_000_000_000)
    tuner, run = session(advisor, {FAST: 8e6}, options)
    steps = play(tuner, run)
    assert tuner.result is not None and tuner.result.decision == "improved"
    assert 100 < steps < 250  # one second is a hundred steps
    assert any(
        "no answer within 1 s" in record.message for record in tuner.take_records() if isinstance(record, NoteRecord)
    )


def test_the_first_measurement_waits_for_the_advisor() -> None:
    advisor = FakeAdvisor(stored=ENOUGH)
    advisor.state = "starting"
    tuner, run = session(advisor)
    play(tuner, run, 40)
    assert tuner.phase == "warm-up"
    advisor.state = "ready"
    play(tuner, run, 3)
    assert tuner.phase == "baseline"


def test_interrupted_in_the_search() -> None:
    advisor = FakeAdvisor([FAST, SLOW], stored=ENOUGH)
    tuner, run = session(advisor, {FAST: 8e6}, OnlineOptions(max_trials=30, steps_per_trial=6))
    play(tuner, run, 40)
    tuner.interrupt("training ended")
    result = tuner.result
    assert result is not None and (result.decision, result.knobs) == ("interrupted", DEFAULTS)
    assert result.reason == (
        "training ended in the search phase after 2 of at most 30 trials; nothing was confirmed, so the default "
        "stays; best seen, unconfirmed: fusion 2 MiB, cycle 0.3 ms (20.0 % less time a step)"
    )
    assert tuner.on_step(run.next_step()) is None
    assert advisor.results == [result]


def test_interrupting_twice_or_after_the_end_changes_nothing() -> None:
    tuner, run = session(FakeAdvisor([FAST], stored=ENOUGH), {FAST: 8e6})
    play(tuner, run)
    before = tuner.result
    tuner.interrupt("training ended")
    assert tuner.result is before


def test_nothing_to_search_is_said() -> None:
    tuner = OnlineTuner(Space(DEFAULTS, ()), FakeAdvisor())
    play(tuner, SimulatedRun(Flat(), QUIET, DEFAULTS, 0), 20)
    assert tuner.result is not None and tuner.result.decision == "keep-default"
    assert tuner.result.reason == "the user's own settings fix every knob"


def test_knobs_without_their_version_are_a_bug_of_the_caller() -> None:
    tuner, run = session(FakeAdvisor([FAST], stored=ENOUGH))
    while tuner.on_step(run.next_step()) is None:
        pass
    with pytest.raises(InvariantError, match="proposed"):
        tuner.on_step(run.next_step())
