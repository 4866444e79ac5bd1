"""A job that changes after its session: seen, tuned again from what is known; a job that only varies is left alone."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ringtune.knobs import DEFAULTS, Knobs
from ringtune.stats import StepStats
from ringtune.tuner.advice import Stored
from ringtune.tuner.feed import Sample
from ringtune.tuner.landscape import Noise, SimulatedRun
from ringtune.tuner.online import OnlineTuner
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.records import NoteRecord, Record, ResultRecord, StartRecord, TrialRecord
from ringtune.tuner.sessions import Sessions
from ringtune.tuner.space import Space
from ringtune.tuner.watch import Shape, Watch
from tests.tuner.jobs import FAST, QUIET, FakeAdvisor, Table

OTHER = Knobs(8 << 20, 600_000)
OPTIONS = OnlineOptions(max_trials=3, steps_per_trial=6)
KNOWN = [Stored(None, 9), Stored(FAST, 12, confirmed=True), Stored(FAST, 12, confirmed=True)]
"""What the memory holds when a session begins: the first one confirms a setting."""


class Training:
    """Sessions on a simulated job; each has an advisor of its own that suggests the same settings."""

    def __init__(self, job: Table, stored: list[Stored] = KNOWN, settings: tuple[Knobs, ...] = (FAST, OTHER)) -> None:
        self.run = SimulatedRun(job, QUIET, DEFAULTS, 0)
        self.began: list[ResultRecord | None] = []
        self.records: list[Record] = []
        self._settings, self._stored = settings, iter(stored)
        self.sessions = Sessions(self._begin)

    def _begin(self, before: ResultRecord | None) -> OnlineTuner:
        self.began.append(before)
        advisor = FakeAdvisor(self._settings, stored=next(self._stored))
        return OnlineTuner(Space(), advisor, OPTIONS, before=before)

    def steps(self, count: int) -> None:
        for _ in range(count):
            knobs = self.sessions.on_step(self.run.next_step())
            if knobs is not None:
                self.sessions.proposed(self.run.propose(knobs))
            self.records += self.sessions.take_records()

    def until_the_end(self) -> ResultRecord:
        while self.sessions.result is None:
            self.steps(1)
            assert self.run.step < 10_000
        return self.sessions.result

    def until_it_begins_again(self) -> int:
        """Step until another session has begun; returns how many steps that took."""
        count, first = self.sessions.count, self.run.step
        while self.sessions.count == count:
            self.steps(1)
            assert self.run.step - first < 10_000
        return self.run.step - first

    def notes(self) -> list[str]:
        return [record.message for record in self.records if isinstance(record, NoteRecord)]


def tuned() -> Training:
    """A training whose first session has confirmed FAST."""
    training = Training(Table({FAST: 8e6, OTHER: 9e6}))
    assert training.until_the_end().knobs == FAST
    training.steps(800)
    assert training.sessions.count == 1 and training.run.knobs == FAST
    return training


def test_a_lasting_change_of_the_step_time_opens_the_search_again() -> None:
    """The setting has lost its gain: within five blocks of two seconds, and the one that was under way, it is seen."""
    training = tuned()
    training.run.job = Table({FAST: 10e6, OTHER: 6e6})
    assert 800 <= training.until_it_begins_again() <= 1250
    training.steps(1)
    assert training.notes()[-1] == "the job has changed: its steps take 25.0 % longer; tuning again"
    assert training.run.knobs == FAST, "what is known runs on"
    first, second = training.began
    assert first is None and second is not None and second.knobs == FAST
    del training.records[:]
    result = training.until_the_end()
    made = [record for record in training.records if isinstance(record, TrialRecord)]
    assert [(trial.source, trial.knobs) for trial in made[:2]] == [("default", DEFAULTS), ("stored", FAST)]
    assert "start-point" in {trial.source for trial in made}, "older trials do not stand for the changed job"
    assert result.decision == "keep-default" or result.knobs == OTHER
    assert isinstance(training.records[0], StartRecord)


def test_a_machine_that_became_slower_needs_no_search() -> None:
    """The setting gains as much as before: it is compared with the default and stays; the watch rests longer."""
    training = tuned()
    training.run.job = Table({FAST: 12e6, DEFAULTS: 15e6})
    training.until_it_begins_again()
    del training.records[:]
    result = training.until_the_end()
    assert (result.decision, result.knobs) == ("improved", FAST)
    assert result.reason.startswith("the stored result still holds: 20.0 %")
    assert {record.knobs for record in training.records if isinstance(record, TrialRecord)} == {DEFAULTS, FAST}
    training.steps(900)
    training.run.job = Table({FAST: 16e6, DEFAULTS: 20e6})
    training.steps(3000)
    assert training.sessions.count == 2, "it was resting"
    training.run.job = Table({FAST: 20e6, DEFAULTS: 25e6})
    training.until_it_begins_again()


def test_a_smaller_gain_than_before_is_a_reason_to_search() -> None:
    training = tuned()
    training.run.job = Table({FAST: 14e6, OTHER: 10e6, DEFAULTS: 15e6})
    training.until_it_begins_again()
    training.until_the_end()
    assert any(
        "still better than the default, by 6.7 %" in note and "instead of 20.0 %" in note for note in training.notes()
    )


@pytest.mark.parametrize(("gradients", "size"), [(3, 8192), (5, 4096)])
def test_other_gradients_open_the_search_again(gradients: int, size: int) -> None:
    training = Training(Table({FAST: 8e6}), [Stored(None, 9), Stored(None, 0)])
    training.until_the_end()
    training.steps(400)
    training.run.job = Table({FAST: 8e6}, size, gradients)
    training.until_it_begins_again()
    training.steps(1)
    sent = f"{gradients} operations of {size >> 10} KiB together"
    said = f"the job has changed: a step sends {sent}, it was tuned for 3 operations of 4 KiB together; tuning again"
    assert training.notes()[-1] == said
    del training.records[:]
    assert training.until_the_end().knobs == FAST
    made = [record for record in training.records if isinstance(record, TrialRecord)]
    assert [(trial.source, trial.knobs) for trial in made[:2]] == [("default", DEFAULTS), ("stored", FAST)]


def test_a_training_that_ends_in_the_second_session_keeps_the_first_ones_result() -> None:
    training = tuned()
    training.run.job = Table({FAST: 10e6})
    training.until_it_begins_again()
    training.steps(3)
    training.sessions.interrupt("training ended")
    result = training.sessions.result
    assert result is not None and (result.decision, result.knobs) == ("interrupted", FAST)
    assert "what was confirmed before stays: fusion 2 MiB, cycle 0.3 ms" in result.reason


def test_a_job_with_nothing_to_tune_is_not_watched() -> None:
    def begin(before: ResultRecord | None) -> OnlineTuner:
        return OnlineTuner(Space(DEFAULTS, ()), FakeAdvisor(), before=before)

    sessions, run = Sessions(begin), SimulatedRun(Table({}), QUIET, DEFAULTS, 0)
    for step in range(2000):
        run.job = Table({}, bytes=4096 if step < 500 else 8192)
        sessions.on_step(run.next_step())
    assert sessions.count == 1


def steps(noise: Noise, count: int, seed: int) -> Iterator[StepStats]:
    run = SimulatedRun(Table({}), noise, DEFAULTS, seed)
    return (run.next_step() for _ in range(count))


def first_alarm(stats: Iterator[StepStats]) -> int | None:
    """The step at which a watch says something; None when it stays silent."""
    watch = Watch(Shape(3, 4096), 0)
    for one in stats:
        if watch.add(Sample(one.knobs_version, one.wall_ns, one.bytes, one.collectives)):
            return one.step
    return None


@pytest.mark.parametrize("noise", [Noise(0.04), Noise(0.13), Noise(0.13, tail=0.05)], ids=["4 %", "13 %", "tails"])
def test_noise_alone_is_no_change(noise: Noise) -> None:
    """`tuner/README.md` states the rate over 90 million steps."""
    assert first_alarm(steps(noise, 50_000, 0)) is None


@pytest.mark.parametrize("noise", [Noise(0.04), Noise(0.13)], ids=["4 %", "13 %"])
def test_a_change_by_a_quarter_is_seen_in_noise(noise: Noise) -> None:
    run = SimulatedRun(Table({}), noise, DEFAULTS, 1)
    watch = Watch(Shape(3, 4096), 0)
    for step in range(3500):
        run.job = Table({DEFAULTS: 10e6 if step < 2000 else 12.5e6})
        one = run.next_step()
        if watch.add(Sample(one.knobs_version, one.wall_ns, one.bytes, one.collectives)):
            assert 2000 < step < 3300
            return
    pytest.fail("not seen")


def test_steps_that_now_and_then_send_more_are_no_change() -> None:
    """A metric in every tenth step, a few gradients that differ: the job is the same."""
    draw = random.Random(1)
    watch = Watch(Shape(3, 4096), 0)
    for step in range(20_000):
        more = step % 10 == 0 or draw.random() < 0.3
        assert not watch.add(Sample(0, 10_000_000, 4096 + 8 * more, 3 + more))


def test_a_hiccup_of_six_seconds_is_no_change() -> None:
    watch = Watch(Shape(3, 4096), 0)
    for step in range(3000):
        slow = 1500 <= step < 1700
        assert not watch.add(Sample(0, 30_000_000 if slow else 10_000_000, 4096, 3))


def test_steps_of_older_knobs_do_not_count() -> None:
    watch = Watch(Shape(3, 4096), 4)
    for _ in range(3000):
        assert not watch.add(Sample(3, 50_000_000, 4096, 3))
    for _ in range(3000):
        assert not watch.add(Sample(4, 10_000_000, 4096, 3))
