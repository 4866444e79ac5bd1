"""`ringtune bench tuner`: landscapes, Horovod's procedure, accounts of time, the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune.benchmarks.tuning.command import missed, tuner
from ringtune.benchmarks.tuning.landscapes import GridJob, Landscape, read_grid, synthetic
from ringtune.benchmarks.tuning.procedures import PROCEDURES
from ringtune.benchmarks.tuning.recording import grid
from ringtune.benchmarks.tuning.session import Outcome, play
from ringtune.errors import UsageError
from ringtune.knobs import Knobs
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
    assert missed([good] * 9 + [bad]) == ["not more than 1 % below the default in 90.0%, required 99%"]


def test_the_command_prints_and_records(tmp_path: Path) -> None:
    words = ["--landscapes", "flat", "--noise", "1 %", "--procedures", "random", "--seeds", "1", "--json"]
    done = CliRunner().invoke(tuner, [*words, str(tmp_path / "r.json")], catch_exceptions=False)
    assert done.exit_code == 0 and "ringtune, by noise" in done.output
    record = json.loads((tmp_path / "r.json").read_text())
    assert [one["procedure"] for one in record["outcomes"]] == ["ringtune", "random"]
    both = [*words, str(tmp_path / "s.json"), "--first-seed", "1", "--add", str(tmp_path / "r.json")]
    assert CliRunner().invoke(tuner, both, catch_exceptions=False).exit_code == 0
    assert [one["seed"] for one in json.loads((tmp_path / "s.json").read_text())["outcomes"]] == [0, 0, 1, 1]


def test_unknown_names_are_refused() -> None:
    for words in (["--landscapes", "nowhere"], ["--procedures", "guessing"]):
        done = CliRunner().invoke(tuner, words)
        assert isinstance(done.exception, UsageError)


def test_a_recorded_point_is_the_median_of_the_slowest_ranks_settled_steps() -> None:
    """Two passes; the first two steps after a change are long and count for nothing."""
    asked: list[Knobs] = []

    def play_steps(knobs: Knobs, steps: int) -> list[list[int]]:
        asked.append(knobs)
        length = knobs.fusion_bytes + knobs.cycle_time_ns
        return [[10**9, 10**9] + [length] * (steps - 2), [1, 1] + [length + 7] * (steps - 2)]

    assert grid(play_steps, [1000, 2000], [10, 20]) == [[1017.0, 1027.0], [2017.0, 2027.0]]
    assert len(asked) == 8 and len(set(asked)) == 4


@pytest.mark.parametrize("asked", [("two", "1"), ("0", "1")])
def test_a_recording_needs_ranks_and_files(asked: tuple[str, str]) -> None:
    done = CliRunner().invoke(tuner, ["--record", *asked, "1gbit", "resnet50"], standalone_mode=False)
    assert isinstance(done.exception, UsageError) and "--record HOSTS SLOTS RATE PROFILE" in str(done.exception)
