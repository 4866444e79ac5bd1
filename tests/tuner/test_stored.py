"""What a session does with the result that an earlier session has left: exact sequences on noise-free jobs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.advice import Near, Stored, Workload
from ringtune.tuner.fingerprint import JobDescription, distance
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.records import NoteRecord, ProgressRecord, ResultRecord, StartRecord, TrialRecord
from tests.tuner.jobs import FAST, SLOW, FakeAdvisor, play, session

CONFIRMED = Stored(FAST, 9, confirmed=True)


def test_a_confirmed_result_runs_at_once_and_stays_where_it_holds() -> None:
    advisor = FakeAdvisor([SLOW], stored=CONFIRMED)
    tuner, run = session(advisor, {FAST: 8e6})
    first: list[Knobs] = []
    while tuner.result is None:
        knobs = tuner.on_step(run.next_step())
        if knobs is not None:
            first.append(knobs)
            tuner.proposed(run.propose(knobs))
        assert run.step < 150, "the check is short"
    start, note, *blocks, default, stored, result = tuner.take_records()
    assert {(one.phase, one.knobs) for one in blocks if isinstance(one, ProgressRecord)} == {("check", FAST)}
    assert [one.blocks for one in blocks if isinstance(one, ProgressRecord)] == list(range(len(blocks)))
    assert isinstance(start, StartRecord) and first[0] == FAST
    assert note == NoteRecord("the stored result of this job runs at once and is checked: fusion 2 MiB, cycle 0.3 ms")
    assert isinstance(default, TrialRecord) and isinstance(stored, TrialRecord)
    assert (default.trial, default.source, default.knobs) == (0, "default", DEFAULTS)
    assert (stored.trial, stored.source, stored.knobs) == (1, "confirm", FAST)
    assert stored.gain.median == pytest.approx(0.2)
    assert isinstance(result, ResultRecord) and (result.decision, result.knobs) == ("improved", FAST)
    assert result.reason == "the stored result still holds: 20.0 % (20.0 % to 20.0 %) less time a step"
    assert advisor.results == [result] and [outcome.trial for outcome in advisor.told] == [default, stored]
    for _ in range(3):
        run.next_step()
    assert (run.knobs, run.knobs_version) == (FAST, result.knobs_version)


@pytest.mark.parametrize(("now", "tried"), [(10.2e6, ["default", "stored"]), (15e6, ["default"])])
def test_a_confirmed_result_that_does_not_hold_opens_the_search(now: float, tried: list[str]) -> None:
    """One that is clearly worse is left at once and does not even become a trial."""
    better = Knobs(4 << 20, 500_000)
    tuner, run = session(FakeAdvisor([better], stored=CONFIRMED), {FAST: now, better: 7e6})
    play(tuner, run)
    notes = [record.message for record in tuner.take_records() if isinstance(record, NoteRecord)]
    assert notes[1].startswith("the stored result does not hold any more (") and notes[1].endswith("; searching")
    assert [trial.source for trial in tuner.trials] == [*tried, "sampler"]
    assert tuner.result is not None and (tuner.result.decision, tuner.result.knobs) == ("improved", better)


def test_what_the_check_of_a_stored_result_loses_is_bounded_and_counted() -> None:
    """Five steps are needed to see it, two are discarded, and one or two more pass until the default is back."""
    tuner, run = session(FakeAdvisor([], stored=CONFIRMED), {FAST: 100e6})
    play(tuner, run)
    assert tuner.result is not None and tuner.result.decision == "keep-default"
    assert 7 * 90e6 <= tuner.result.lost_ns <= 9 * 90e6


def test_training_that_ends_within_the_check_leaves_the_stored_result_stored() -> None:
    tuner, run = session(FakeAdvisor([], stored=CONFIRMED), {FAST: 8e6})
    play(tuner, run, 20)
    tuner.interrupt("training ended")
    assert tuner.result is not None and tuner.result.decision == "interrupted"
    assert tuner.result.reason == "training ended while the stored result was checked; it stays stored"


def test_a_near_jobs_setting_is_the_first_point_and_must_be_confirmed() -> None:
    advisor = FakeAdvisor(stored=Stored(None, 0, near=Near(FAST, 4, 2)))
    tuner, run = session(advisor, {FAST: 8e6}, OnlineOptions(max_trials=2, steps_per_trial=6))
    play(tuner, run)
    start, note, default, near, *confirmations, result = tuner.take_records()
    assert isinstance(start, StartRecord) and start.stored_trials == 0
    there = "starts from what the same gradients had with 4 ranks on 2 host(s): fusion 2 MiB, cycle 0.3 ms"
    assert note == NoteRecord(there)
    assert isinstance(default, TrialRecord) and isinstance(near, TrialRecord)
    assert (default.source, near.source, near.knobs) == ("default", "near", FAST)
    assert [record.source for record in confirmations if isinstance(record, TrialRecord)] == ["confirm", "confirm"]
    assert isinstance(result, ResultRecord) and (result.decision, result.knobs) == ("improved", FAST)


DESCRIPTION = JobDescription(world=4, hosts=1, cpu="one", versions=(("python", "3"),)).as_dict(Workload(3, 4096))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 0.0),
        ({"world": 8}, 1.0),
        ({"world": 1}, 2.0),
        ({"world": 8, "hosts": 2}, 2.0),
        ({"cpu": "other"}, 2.0),
        ({"transport": "tcp"}, 2.0),
        ({"versions": [["python", "4"]]}, 0.2),
        ({"versions": [["python", "3"]]}, 0.0),
        ({"bytes": 4097}, math.inf),
        ({"collectives": 4}, math.inf),
    ],
)
def test_the_distance_of_jobs(change: dict[str, Any], expected: float) -> None:
    assert distance(DESCRIPTION, {**DESCRIPTION, **change}) == pytest.approx(expected)
    assert distance({**DESCRIPTION, **change}, DESCRIPTION) == pytest.approx(expected)
