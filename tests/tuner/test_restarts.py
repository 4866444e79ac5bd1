"""Sessions of runs with a runner that plays them: exact sequences, failures, budget, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from ringtune.algorithms import parse_table
from ringtune.errors import RingtuneError
from ringtune.knobs import DEFAULTS
from ringtune.tuner.advice import Workload
from ringtune.tuner.fingerprint import JobDescription
from ringtune.tuner.messages import environment, sentence
from ringtune.tuner.model.collectives import BUILT_IN
from ringtune.tuner.records import FailedRecord, NoteRecord, Record, ResultRecord, StartRecord, TrialRecord, parse
from ringtune.tuner.restarts.choices import (
    AS_IT_IS,
    TABLES,
    Choice,
    Place,
    Setting,
    choices_for,
)
from ringtune.tuner.restarts.memory import StudyMemory
from ringtune.tuner.restarts.session import Known, Leave, RestartOptions, RestartSession, Run
from ringtune.tuner.space import Space
from ringtune.tuner.study import StudyAdvisor, StudyOptions, explain

SOCKETS, OVERLAP = Choice("RINGTUNE_SOCKETS_PER_PEER", ("4", "2")), Choice("RINGTUNE_OVERLAP", ("never",))
FOUR: Setting = (("RINGTUNE_SOCKETS_PER_PEER", "4"),)
TWO: Setting = (("RINGTUNE_SOCKETS_PER_PEER", "2"),)
BOTH: Setting = (("RINGTUNE_OVERLAP", "never"), ("RINGTUNE_SOCKETS_PER_PEER", "4"))
WORKLOAD = Workload(3, 4096)


class FakeRunner:
    """Plays runs of 30 steps of a known length: 10 ms unless said otherwise; a text is a failure."""

    def __init__(
        self, lengths: dict[Setting, float | str], interrupt_at: int = -1, made: dict[str, str] | None = None
    ) -> None:
        self.runs: list[Setting] = []
        self.steps = 0
        self._made = made or {}
        self._lengths, self._interrupt_at = lengths, interrupt_at

    def run(self, setting: Setting, leave: Leave) -> Run:
        if len(self.runs) == self._interrupt_at:
            raise KeyboardInterrupt
        self.runs.append(setting)
        length = self._lengths.get(setting, 10e6)
        if isinstance(length, str):
            return Run((), 1.0, length, WORKLOAD)
        times: list[int] = []
        while len(times) < 30 and not (times and leave(times)):
            times.append(int(length) + len(times))
        self.steps += len(times)
        return Run(tuple(times), 1.0, "", WORKLOAD, made=self._made)


class FakeMemory:
    def __init__(self, known: Known | None = None) -> None:
        self.told: list[tuple[Setting, float]] = []
        self.concluded: list[Setting] = []
        self.workload: Workload | None = None
        self.asked = 0
        self._known = known or Known("f" * 16)

    def open(self, workload: Workload) -> Known:
        self.workload = workload
        return self._known

    def tell(self, setting: Setting, ratio: float | None) -> None:
        self.told.append((setting, -1.0 if ratio is None else round(ratio, 3)))

    def suggest(self, fits: Callable[[Setting], bool]) -> Setting | None:
        self.asked += 1
        return None

    def conclude(self, setting: Setting) -> None:
        self.concluded.append(setting)


def play(
    runner: FakeRunner,
    memory: FakeMemory | None = None,
    options: RestartOptions | None = None,
    choices: Sequence[Choice] = (SOCKETS, OVERLAP),
) -> tuple[list[Record], RestartSession]:
    records: list[Record] = []
    put: Callable[[Record], None] = records.append
    kept = memory or FakeMemory()
    session = RestartSession(runner, lambda first: (choices, kept, ()), options or RestartOptions(world=2), put)
    result = session.run()
    assert records[-1] is result
    for record in records:
        assert parse({**record.as_dict()}) == record, "the journal gives back what was written"
    return records, session


def result_of(records: list[Record]) -> ResultRecord:
    assert isinstance(records[-1], ResultRecord)
    return records[-1]


def test_a_better_setting_is_found_confirmed_and_remembered() -> None:
    runner, memory = FakeRunner({FOUR: 8e6, BOTH: 7e6, TWO: 9e6}), FakeMemory()
    records, session = play(runner, memory)
    assert memory.workload == WORKLOAD
    start = records[0]
    assert isinstance(start, StartRecord) and start.searched == ("RINGTUNE_SOCKETS_PER_PEER", "RINGTUNE_OVERLAP")
    made = [(one.trial, one.source, one.settings) for one in records if isinstance(one, TrialRecord)]
    assert made == [
        (0, "default", {}),
        (1, "switch", dict(FOUR)),
        (2, "switch", dict(TWO)),
        (3, "switch", dict(BOTH)),
        (4, "default", {}),
        (5, "switch", {"RINGTUNE_OVERLAP": "never", "RINGTUNE_SOCKETS_PER_PEER": "2"}),
        (6, "confirm", {}),
        (7, "confirm", dict(BOTH)),
    ]
    assert runner.runs[:6] == [AS_IT_IS, FOUR, TWO, BOTH, AS_IT_IS, (BOTH[0], TWO[0])]
    # Four pairs, every other one backwards.
    assert runner.runs[6:] == [AS_IT_IS, BOTH, BOTH, AS_IT_IS] * 2
    result = result_of(records)
    assert (result.decision, result.settings, result.trials) == ("improved", dict(BOTH), 5)
    assert result.gain.median == pytest.approx(0.3, abs=1e-4) and result.gain.low > 0.0
    assert environment(result) == ["RINGTUNE_OVERLAP=never", "RINGTUNE_SOCKETS_PER_PEER=4"]
    assert memory.concluded == [BOTH] and (BOTH, 0.7) in memory.told
    assert session.runs == 14 and session.spent_s == 14.0


def test_the_line_for_the_script_keeps_what_the_script_says_itself() -> None:
    first: Setting = (("RINGTUNE_DDP_FIRST_BUCKET_MB", "4"),)
    made = {"RINGTUNE_BUCKET_CAP_MB": "10", "RINGTUNE_DDP_FIRST_BUCKET_MB": "10"}
    records, _ = play(FakeRunner({first: 8e6}, made=made), choices=[Choice("RINGTUNE_DDP_FIRST_BUCKET_MB", ("4",))])
    assert environment(result_of(records)) == [
        "RINGTUNE_DDP_FIRST_BUCKET_MB=4",
        "# or in the script: DistributedDataParallel(model, bucket_cap_mb_list=[4, 10])",
    ]


def test_keeping_the_command_as_it_is_is_a_normal_result() -> None:
    runner, memory = FakeRunner({}), FakeMemory()
    records, session = play(runner, memory)
    result = result_of(records)
    assert (result.decision, result.settings) == ("keep-default", {})
    assert sentence(result) == "keeping the default (the command as it is): no other setting looked faster"
    assert environment(result) == [] and memory.concluded == [AS_IT_IS] and session.runs == 4


def test_what_a_search_with_restarts_begins_with_is_the_command() -> None:
    start = StartRecord(DEFAULTS, "ab12", 2, ("RINGTUNE_BUCKET_CAP_MB", "OMP_NUM_THREADS"), 16, 10)
    assert sentence(start).endswith("at most 16 trials of 10 steps; default: the command as it is")


def test_a_run_that_is_clearly_worse_ends_early() -> None:
    runner = FakeRunner({FOUR: 30e6, TWO: 30e6})
    records, _ = play(runner, choices=[SOCKETS])
    early = [one for one in records if isinstance(one, TrialRecord) and one.state == "stopped-early"]
    assert [one.settings for one in early] == [dict(FOUR), dict(TWO)]
    assert all(one.steps <= 4 for one in early)
    assert result_of(records).decision == "keep-default" and result_of(records).lost_ns > 0


def test_a_value_that_was_bad_once_is_not_tried_again_with_others() -> None:
    never: Setting = (("RINGTUNE_OVERLAP", "never"),)
    runner = FakeRunner({FOUR: "no", TWO: 30e6, never: 8e6})
    records, _ = play(runner)
    assert {setting for setting in runner.runs if setting} == {FOUR, TWO, never}
    assert result_of(records).settings == dict(never)


def test_a_run_that_fails_is_a_failed_trial() -> None:
    runner = FakeRunner({FOUR: "rank 1 on here exited with code 3: ValueError: no", TWO: 8e6})
    records, _ = play(runner, choices=[SOCKETS])
    (failed,) = [one for one in records if isinstance(one, FailedRecord)]
    assert (failed.trial, failed.settings) == (1, dict(FOUR))
    assert sentence(failed) == (
        "trial 1 failed: RINGTUNE_SOCKETS_PER_PEER=4: rank 1 on here exited with code 3: ValueError: no"
    )
    assert result_of(records).settings == dict(TWO)


def test_a_command_that_fails_as_it_is_ends_the_session() -> None:
    with pytest.raises(RingtuneError, match=r"the command fails as it is, nothing can be tuned: rank 0 .* code 1"):
        play(FakeRunner({AS_IT_IS: "rank 0 on here exited with code 1"}))


def test_an_interrupt_keeps_what_was_learned() -> None:
    runner, memory = FakeRunner({FOUR: 8e6}, interrupt_at=3), FakeMemory()
    records, _ = play(runner, memory)
    result = result_of(records)
    assert (result.decision, result.settings) == ("interrupted", {})
    assert result.reason.endswith("best seen, unconfirmed: RINGTUNE_SOCKETS_PER_PEER=4 (20.0 % less time a step)")
    assert memory.told == [(FOUR, 0.8), (TWO, 1.0)] and memory.concluded == []


def test_an_interrupt_in_the_first_run_is_no_traceback() -> None:
    records, _ = play(FakeRunner({}, interrupt_at=0))
    assert result_of(records).decision == "interrupted"


def test_the_budget_of_time_holds() -> None:
    """Runs of a second: half of 16 s is for the search, and two further runs must fit; the rest confirms."""
    many = Choice("X", tuple(str(value) for value in range(50)))
    runner = FakeRunner({(("X", "1"),): 8e6})
    records, session = play(runner, options=RestartOptions(max_trials=99, budget_s=16.0), choices=[many])
    assert "the search ends: its half of the budget is used up" in [
        one.message for one in records if isinstance(one, NoteRecord)
    ]
    assert session.spent_s <= 16.0
    assert result_of(records).settings == {"X": "1"}


def test_without_time_to_confirm_the_command_stays() -> None:
    runner = FakeRunner({FOUR: 8e6})
    records, session = play(runner, options=RestartOptions(budget_s=8.0), choices=[SOCKETS])
    assert session.spent_s <= 8.0
    assert result_of(records).decision == "keep-default"


def test_the_number_of_trials_holds() -> None:
    runner = FakeRunner({})
    records, _ = play(runner, options=RestartOptions(max_trials=2))
    assert result_of(records).trials == 2 and runner.runs == [AS_IT_IS, FOUR]


def test_what_was_confirmed_is_checked_first_and_stays_where_it_holds() -> None:
    runner, memory = FakeRunner({FOUR: 8e6}), FakeMemory(Known("f" * 16, FOUR, 5))
    records, _ = play(runner, memory)
    assert set(runner.runs) == {AS_IT_IS, FOUR} and len(runner.runs) == 9
    result = result_of(records)
    assert (result.decision, result.settings) == ("improved", dict(FOUR))
    assert result.reason.startswith("the stored result still holds: 20.0 %")


def test_what_does_not_hold_any_more_is_searched_anew() -> None:
    runner, memory = FakeRunner({FOUR: 10.5e6, TWO: 9e6}), FakeMemory(Known("f" * 16, FOUR, 5))
    records, _ = play(runner, memory, choices=[SOCKETS])
    notes = [one.message for one in records if isinstance(one, NoteRecord)]
    assert notes[1].startswith("the stored result does not hold any more")
    assert [one.settings for one in records if isinstance(one, TrialRecord) and one.source == "switch"] == [dict(TWO)]
    assert result_of(records).settings == dict(TWO)


class Fading(FakeRunner):
    """Fast in its first run only: a lucky sample."""

    def run(self, setting: Setting, leave: Leave) -> Run:
        self._lengths[FOUR] = 8e6 if FOUR not in self.runs else 10.2e6
        return super().run(setting, leave)


def test_a_lucky_run_is_not_believed() -> None:
    records, _ = play(Fading({}), choices=[SOCKETS])
    result = result_of(records)
    assert result.decision == "keep-default" and "no gain was confirmed; the best rival, " in result.reason


def test_variables_of_nccl_are_tried_where_it_carries_the_tensors() -> None:
    tree: Setting = (("NCCL_ALGO", "Tree"),)
    records, _ = play(FakeRunner({tree: 8e6}), choices=choices_for(Place(1, 8, nccl=True), given=()))
    assert result_of(records).settings == {"NCCL_ALGO": "Tree"}


@pytest.mark.parametrize(("table", "factor"), list(zip(TABLES, (4.0, 0.25), strict=True)))
def test_tables_that_are_tried_move_the_switch_points_between_hosts(table: str, factor: float) -> None:
    rules = parse_table(Path(table).read_text(), table)
    moved = [replace(rule, max_bytes=int(rule.max_bytes * factor)) for rule in BUILT_IN]
    assert [rule for rule in rules if rule.links == "network"] == moved
    # Within a host the rows of native/collective/algorithm.cc, as they are.
    assert [(rule.max_ranks, rule.max_bytes) for rule in rules if rule.links == "memory"] == [(2, 65536), (0, 16384)]


def test_the_memory_gives_the_next_session_what_was_confirmed(tmp_path: Path) -> None:
    said: list[str] = []

    def memory(world: int = 2) -> StudyMemory:
        job = JobDescription(world=world)
        return StudyMemory(job, [SOCKETS], [str(tmp_path / "a.db"), str(tmp_path / "b.db")], said.append)

    first = memory()
    assert first.open(WORKLOAD).confirmed is None
    first.tell(FOUR, 0.8)
    first.tell((("OTHER", "1"),), 0.7)
    first.conclude(FOUR)
    again = memory().open(WORKLOAD)
    assert (again.confirmed, again.trials) == (FOUR, 1 + 1)
    assert memory(4).open(WORKLOAD).confirmed is None and memory().open(Workload(4, 4096)).confirmed is None
    assert (tmp_path / "b.db").is_file() and said == []


def test_a_memory_that_cannot_be_opened_is_said_and_survived(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "file"
    file.write_text("")
    memory = StudyMemory(JobDescription(), [SOCKETS], [str(file / "studies.db")], said.append)
    assert memory.open(WORKLOAD).confirmed is None
    memory.tell(FOUR, 0.8)
    memory.conclude(FOUR)
    assert len(said) == 1 and said[0].startswith("the memory cannot be used")


@pytest.mark.parametrize(
    "place",
    [
        "postgresql+psycopg://ann:sword/fish@127.0.0.1:1/study",
        "postgresql+psycopg://ann@127.0.0.1:1/study?password=swordfish",
        "postgresql://ann:swordfish@db:port/study",
        "nonsense://ann:swordfish@db/study",
        "not a scheme://ann:swordfish@db/study",
    ],
)
def test_an_error_of_a_storage_shows_no_password(place: str) -> None:
    """Whatever of server, driver and URL is not there."""
    said: list[str] = []
    StudyMemory(JobDescription(), [SOCKETS], [place], said.append).open(WORKLOAD)
    assert len(said) == 1 and "fish" not in said[0], said
    advisor = StudyAdvisor(Space(), JobDescription(), StudyOptions(place))
    advisor.open(WORKLOAD)
    assert advisor.state == "failed" and advisor.failure and "fish" not in advisor.failure
    text = f"Could not parse SQLAlchemy URL from string '{place}'"
    assert "fish" not in explain(ValueError(text)) and "ann" in explain(ValueError(text))


LARGE = [Choice(name, ("x", "y", "z")) for name in "ABCDEFGHIJ"]
"""More values to see than the twelve trials of a session."""


class LargeRunner(FakeRunner):
    """Every variable at ``z`` saves 5 % of a step; a command with B at ``y`` fails."""

    def run(self, setting: Setting, leave: Leave) -> Run:
        self._lengths[setting] = "no" if ("B", "y") in setting else 10e6 * 0.95 ** [v for _, v in setting].count("z")
        return super().run(setting, leave)


def large_session(memory: StudyMemory | FakeMemory) -> tuple[list[Record], LargeRunner]:
    records: list[Record] = []
    runner = LargeRunner({})
    RestartSession(runner, lambda first: (LARGE, memory, ()), RestartOptions(world=2), records.append).run()
    return records, runner


@pytest.mark.parametrize("seed", [0, 4])
def test_in_a_large_space_a_sampler_chooses_and_gets_further(tmp_path: Path, seed: int) -> None:
    said: list[str] = []
    memory = StudyMemory(JobDescription(), LARGE, [str(tmp_path / "studies.db")], said.append, seed)
    records, _ = large_session(memory)
    trials = [one for one in records if isinstance(one, TrialRecord | FailedRecord) and one.settings]
    searched = [one for one in trials if not (isinstance(one, TrialRecord) and one.source == "confirm")]
    chosen = [one for one in searched if isinstance(one, TrialRecord) and one.source == "sampler"]
    assert [one.settings for one in searched[:3]] == [{"A": "x"}, {"A": "y"}, {"A": "z"}]
    assert len(searched) == 11 and all(one in chosen for one in searched[3:] if isinstance(one, TrialRecord))
    assert any(len(one.settings or {}) > 1 for one in chosen)
    assert len({tuple(sorted((one.settings or {}).items())) for one in searched}) == 11, "none is tried twice"
    one_by_one = result_of(large_session(FakeMemory())[0])
    assert result_of(records).gain.low > one_by_one.gain.high > 0.0 and said == []


def test_a_space_that_the_trials_can_see_is_tried_one_by_one() -> None:
    memory = FakeMemory()
    play(FakeRunner({}), memory, choices=LARGE[:3])
    assert memory.asked == 0


def test_a_sampler_without_an_opinion_leaves_the_choice(tmp_path: Path) -> None:
    memory = FakeMemory()
    records, _ = large_session(memory)
    assert memory.asked == 8 and (("A", "z"), ("B", "y")) in [setting for setting, ratio in memory.told if ratio < 0]
    assert StudyMemory(JobDescription(), LARGE, [], print).suggest(lambda setting: True) is None
    assert result_of(records).decision == "improved"


def test_what_failed_is_known_to_the_next_session(tmp_path: Path) -> None:
    """As a trial that was pruned; what is drawn and not run leaves nothing."""
    place = str(tmp_path / "studies.db")
    first = StudyMemory(JobDescription(), LARGE, [place], print, 0)
    first.open(WORKLOAD)
    first.tell((("B", "y"),), None)
    assert first.suggest(lambda setting: True) is not None and first.suggest(lambda setting: False) is None
    assert StudyMemory(JobDescription(), LARGE, [place], print).open(WORKLOAD).trials == 1
    (study,) = optuna.get_all_study_summaries(f"sqlite:///{place}")
    (trial,) = optuna.load_study(study_name=study.study_name, storage=f"sqlite:///{place}").trials
    assert trial.state is optuna.trial.TrialState.PRUNED and trial.params["B"] == "y"
