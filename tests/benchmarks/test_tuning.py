"""`ringtune bench tuner`: landscapes, Horovod's procedure, accounts of time, the command."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune import layout
from ringtune.benchmarks.netlab.testbed import Shape
from ringtune.benchmarks.tuning import command, live
from ringtune.benchmarks.tuning.command import Case, missed, read_record, tuner
from ringtune.benchmarks.tuning.landscapes import GridJob, Landscape, credible, read_grid, synthetic
from ringtune.benchmarks.tuning.procedures import PROCEDURES
from ringtune.benchmarks.tuning.profiled_worker import LastStep
from ringtune.benchmarks.tuning.recording import grid
from ringtune.benchmarks.tuning.session import Outcome, play
from ringtune.errors import UsageError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.journal import Journal
from ringtune.tuner.landscape import Noise
from ringtune.tuner.records import ResultRecord
from ringtune.tuner.scoring import NO_GAIN
from ringtune.tuner.space import Space

GRID = GridJob(1000, 10, (1 << 20, 4 << 20), (1_000_000, 100_000_000), ((10e6, 40e6), (20e6, 80e6)))


def test_a_grid_is_log_linear_between_its_points_and_flat_outside() -> None:
    assert GRID.step_ns(Knobs(1 << 20, 1_000_000)) == pytest.approx(10e6)
    assert GRID.step_ns(Knobs(4 << 20, 100_000_000)) == pytest.approx(80e6)
    assert GRID.step_ns(Knobs(2 << 20, 1_000_000)) == pytest.approx(10e6 * math.sqrt(2))
    assert GRID.step_ns(Knobs(1 << 20, 10_000_000)) == pytest.approx(20e6)
    assert GRID.step_ns(Knobs(1 << 10, 1)) == pytest.approx(10e6)
    assert GRID.step_ns(Knobs(1 << 30, 10**12)) == pytest.approx(80e6)


def test_a_recorded_grid_is_read(tmp_path: Path) -> None:
    record = {
        "name": "two ranks", "bytes": 1000, "gradients": 10, "fusion_bytes": [1 << 20, 4 << 20],
        "cycle_time_ns": [1_000_000, 100_000_000], "step_ns": [[10e6, 40e6], [20e6, 80e6]],
    }  # fmt: skip
    file = tmp_path / "grid.json"
    file.write_text(json.dumps(record))
    assert read_grid(file)[0].job == GRID
    file.write_text("{}")
    with pytest.raises(UsageError, match="is no measured grid"):
        read_grid(file)


ROWS = [[1.0, 2.0], [4.0, 8.0]]


def test_times_that_both_passes_saw_are_believed() -> None:
    assert credible(ROWS, [ROWS, ROWS]) == tuple(pytest.approx(row) for row in ROWS)
    assert credible(ROWS, []) == tuple(pytest.approx(row) for row in ROWS)


def test_times_that_no_other_pass_saw_are_noise_around_their_mean() -> None:
    backwards = [[8.0, 4.0], [2.0, 1.0]]
    flat = 2.0**1.5  # the geometric mean of 1, 2, 4 and 8
    assert credible(ROWS, [ROWS, backwards]) == tuple(pytest.approx([flat, flat]) for _ in range(2))
    assert credible(ROWS, [ROWS, [[3.0, 3.0], [3.0, 3.0]]]) == tuple(pytest.approx([flat, flat]) for _ in range(2))


def test_half_of_what_half_agrees_is_believed() -> None:
    """Logarithms 0 1 2 3 and 1 0 3 2 correlate by 0.6: two passes by 2 x 0.6 / 1.6."""
    found = credible(ROWS, [ROWS, [[2.0, 1.0], [8.0, 4.0]]])
    assert [math.log2(time) for row in found for time in row] == pytest.approx(
        [1.5 + 0.75 * away for away in (-1.5, -0.5, 0.5, 1.5)]
    )


def test_a_recorded_noise_is_played_beside_the_others(tmp_path: Path) -> None:
    record = {
        "name": "x", "bytes": 1000, "gradients": 10, "fusion_bytes": [1 << 20, 4 << 20],
        "cycle_time_ns": [1_000_000, 100_000_000], "step_ns": ROWS, "passes_ns": [ROWS, ROWS], "noise": 0.07,
    }  # fmt: skip
    file = tmp_path / "grid.json"
    file.write_text(json.dumps(record))
    assert [place.noises["as measured"] for place in read_grid(file)] == [Noise(0.07)] * 2
    assert all("as measured" not in place.noises for place in synthetic())


@pytest.mark.parametrize("text", ["2x1", "1x2@1gbit", "2x0@1gbit", "2x1@fast", "2x1@none"])
def test_a_live_case_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        live.parse_case(text)
    assert live.parse_case("4x2@2.5gbit") == live.Case(Shape(4, 2), "2.5gbit")


def test_settings_are_measured_in_turn_and_every_other_round_backwards() -> None:
    asked: list[int] = []

    def play_steps(knobs: Knobs, steps: int) -> list[list[int]]:
        asked.append(knobs.fusion_bytes)
        return [[10**9, 10**9] + [knobs.fusion_bytes] * (steps - 2), [1] * steps]

    times = live.again(play_steps, {"default": Knobs(3, 1), "tuned": Knobs(2, 1)})
    assert asked[:4] == [3, 2, 2, 3] and len(asked) == 2 * live.ROUNDS
    assert times == {"default": [3.0] * live.ROUNDS, "tuned": [2.0] * live.ROUNDS}


def _found(tuned: Knobs, ratio: float) -> live.Found:
    ended = live.Ended("improved", tuned, 7, 10, "why")
    rounds = [100e6 + 1e5 * number for number in range(10)]
    times = {"default": rounds, "grid optimum": rounds, "tuned": [ratio * time for time in rounds]}
    knobs = {"default": DEFAULTS, "grid optimum": Knobs(1 << 20, 10**6), "tuned": tuned}
    return live.Found(live.parse_case("2x1@1gbit"), ended, [[1.0]], times, knobs)


def test_worse_is_a_tuned_setting_whose_interval_lies_above_the_default() -> None:
    assert _found(Knobs(1 << 20, 10**6), 1.01).worse
    assert not _found(Knobs(1 << 20, 10**6), 0.99).worse
    assert not _found(DEFAULTS, 1.01).worse  # the same setting: nothing but noise
    row = live.as_json(_found(Knobs(1 << 20, 10**6), 1.01))
    assert row["worse_than_default"] and row["settings"]["tuned"]["over_default"]["median"] == pytest.approx(1.01)


def test_the_last_step_is_named_when_there_is_a_result_and_lies_ahead(tmp_path: Path) -> None:
    first, other = (LastStep(tmp_path, 1000) for _ in range(2))
    journal = Journal(layout.tuning_journal(tmp_path))
    first.look(5)
    assert not other.reached(999) and other.reached(1000)
    journal.write([ResultRecord("keep-default", DEFAULTS, 0, NO_GAIN, 0, "why")])
    first.look(6)
    first.look(7)
    assert not other.reached(15) and other.reached(16)
    assert live.read_end(tmp_path).decision == "keep-default"


def test_horovods_procedure_begins_at_its_four_points_and_stays_in_its_box() -> None:
    search = PROCEDURES["Horovod's"](Space(), 0)
    made = [next(search), *(search.send(10e6 + number) for number in range(6))]
    assert [(knobs.fusion_bytes >> 20, knobs.cycle_time_ns / 1e6) for knobs in made[:4]] == [
        (4, 5), (32, 50), (16, 25), (8, 10),
    ]  # fmt: skip
    assert all(knobs.fusion_bytes <= 64 << 20 and 1e6 <= knobs.cycle_time_ns <= 100e6 for knobs in made)


@pytest.mark.parametrize("name", ["random", "Sobol", "TPE", "GP"])
def test_the_other_procedures_begin_with_the_default(name: str) -> None:
    search = PROCEDURES[name](Space(), 0)
    assert next(search) == Space().default


def test_accounts_of_a_session_that_tries_worse_and_better_settings() -> None:
    """Random search on a landscape of known times: what was lost is the sum over its own steps."""
    place = next(one for one in synthetic() if one.name == "bad default")
    outcome = play(place, "1 %", "random", 0)
    assert outcome.trials == 15
    assert 15 * 12 <= outcome.steps <= 15 * 13
    assert outcome.to_default == pytest.approx(place.job.step_ns(outcome.knobs) / place.default_ns - 1)
    assert outcome.to_optimum == pytest.approx(place.job.step_ns(outcome.knobs) / place.optimum_ns - 1)
    won = -outcome.to_default
    assert outcome.break_even == pytest.approx(outcome.steps + max(outcome.lost, 0) / won)


def test_a_flat_landscape_has_nothing_to_lose() -> None:
    place = next(one for one in synthetic() if one.name == "flat")
    outcome = play(place, "1 %", "ringtune", 0)
    assert (outcome.to_optimum, outcome.to_default, outcome.lost, outcome.deepest) == (0, 0, 0, 0)


def test_requirements_are_missed_by_name() -> None:
    place = Landscape("x", GRID, Knobs(1 << 20, 1_000_000))
    bad = Outcome(place.name, "1 %", "ringtune", 0, place.default, 15, 200, 0.2, 0.1, 0.0, 0.0, math.inf)
    assert len(missed([bad])) == 2
    good = Outcome(place.name, "1 %", "ringtune", 0, place.default, 15, 200, 0.0, 0.0, 0.0, 0.0, math.inf)
    assert missed([]) == ["no session of ringtune's was played"]
    assert missed([good] * 9 + [bad]) == ["not more than 1 % below the default in 90.0%, required 99%"]


def test_the_command_prints_and_records(tmp_path: Path) -> None:
    words = ["--landscapes", "flat", "--noise", "1 %", "--procedures", "random,ringtune", "--seeds", "1", "--json"]
    done = CliRunner().invoke(tuner, [*words, str(tmp_path / "r.json")], catch_exceptions=False)
    assert done.exit_code == 0 and "ringtune, by noise" in done.output
    record = json.loads((tmp_path / "r.json").read_text())
    assert [one["procedure"] for one in record["outcomes"]] == ["ringtune", "random"]
    both = [*words, str(tmp_path / "s.json"), "--first-seed", "1", "--add", str(tmp_path / "r.json")]
    assert CliRunner().invoke(tuner, both, catch_exceptions=False).exit_code == 0
    assert [one["seed"] for one in json.loads((tmp_path / "s.json").read_text())["outcomes"]] == [0, 0, 1, 1]


def test_what_is_added_is_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, words = tmp_path / "r.json", ["--landscapes", "flat", "--noise", "1 %", "--procedures", "random,Sobol"]
    assert CliRunner().invoke(tuner, [*words, "--seeds", "1", "--json", str(file)]).exit_code == 0
    played: list[tuple[str, str, str, int]] = []

    def note(cases: Sequence[Case], jobs: int) -> Iterator[Outcome]:
        played.extend((case[0].name, *case[1:]) for case in cases)
        return iter(())

    monkeypatch.setattr(command, "run_sessions", note)
    again = CliRunner().invoke(tuner, [*words, "--seeds", "2", "--add", str(file), "--json", str(file)])
    assert again.exit_code == 0
    assert played == [("flat", "1 %", "random", 1), ("flat", "1 %", "Sobol", 1)]
    assert len(read_record(file)) == 2


def test_a_run_that_is_interrupted_leaves_what_it_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Landscape("x", GRID, Knobs(1 << 20, 1_000_000))
    one = Outcome(place.name, "1 %", "random", 0, place.default, 15, 200, 0.0, 0.0, 0.0, 0.0, math.inf)

    def interrupted(cases: Sequence[Case], jobs: int) -> Iterator[Outcome]:
        yield one
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_sessions", interrupted)
    CliRunner().invoke(tuner, ["--landscapes", "flat", "--json", str(tmp_path / "r.json")])
    assert read_record(tmp_path / "r.json") == [one]


def test_unknown_names_are_refused() -> None:
    for words in (["--landscapes", "nowhere"], ["--procedures", "guessing"], ["--case", "2x1@1gbit"]):
        done = CliRunner().invoke(tuner, words)
        assert isinstance(done.exception, UsageError)


def test_a_recorded_point_is_the_median_of_the_slowest_ranks_settled_steps() -> None:
    """Two passes; the first two steps after a change are long and count for nothing."""
    asked: list[Knobs] = []

    def play_steps(knobs: Knobs, steps: int) -> list[list[int]]:
        asked.append(knobs)
        length = knobs.fusion_bytes + knobs.cycle_time_ns
        return [[10**9, 10**9] + [length] * (steps - 2), [1, 1] + [length + 7] * (steps - 2)]

    found = grid(play_steps, [1000, 2000], [10, 20])
    assert found.step_ns == [[1017.0, 1027.0], [2017.0, 2027.0]]
    assert found.passes_ns == [found.step_ns] * 2 and found.noise == 0.0
    assert len(asked) == 8 and len(set(asked)) == 4


@pytest.mark.parametrize("asked", [("two", "1"), ("0", "1")])
def test_a_recording_needs_ranks_and_files(asked: tuple[str, str]) -> None:
    done = CliRunner().invoke(tuner, ["--record", *asked, "1gbit", "resnet50"], standalone_mode=False)
    assert isinstance(done.exception, UsageError) and "--record HOSTS SLOTS RATE PROFILE" in str(done.exception)
