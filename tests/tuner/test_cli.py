"""``ringtune tune`` with a launcher that plays a job by writing its journal."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from ringtune import layout
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.launch import LaunchOptions
from ringtune.tuner import cli, progress
from ringtune.tuner.journal import Journal
from ringtune.tuner.progress import Follower, LiveView, better
from ringtune.tuner.records import NoteRecord, Record, ResultRecord, StartRecord, TrialRecord, parse
from ringtune.tuner.scoring import NO_GAIN, Interval

FAST = Knobs(4 << 20, 500_000)
START = StartRecord(DEFAULTS, "ab12", 2, ("fusion_bytes", "cycle_time_ns"), 16, 10)
DEFAULT = TrialRecord(0, "default", "complete", DEFAULTS, 0, 10, Interval(2e6, 1.9e6, 2.1e6))
TRIAL = TrialRecord(
    1, "sampler", "complete", FAST, 4, 10, Interval(1e6, 0.9e6, 1.1e6), Interval(0.5, 0.4, 0.6), 8, -2_000_000_000
)
IMPROVED = ResultRecord("improved", FAST, 9, Interval(0.5, 0.4, 0.6), -2_000_000_000, "confirmed", 2)
KEPT = ResultRecord("keep-default", DEFAULTS, 9, NO_GAIN, 1_000_000_000, "no other setting looked faster", 2)
INTERRUPTED = ResultRecord("interrupted", DEFAULTS, 9, NO_GAIN, 0, "training ended early", 2)

Play = Callable[..., Result]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Run the command; the job writes the records and ends with the exit code."""
    launched: list[LaunchOptions] = []

    def run(*arguments: str, records: tuple[Record, ...] = (), exit_code: int = 0) -> Result:
        def launch(options: LaunchOptions) -> int:
            launched.append(options)
            assert options.run_dir is not None
            if records:
                with Journal(layout.tuning_journal(options.run_dir)) as journal:
                    journal.write(records)
            time.sleep(3 * progress._POLL_S)
            return exit_code

        monkeypatch.setattr(cli, "launch", launch)
        place = [] if "--run-dir" in arguments else ["--run-dir", str(tmp_path / "run")]
        result = CliRunner().invoke(
            cli.tune, [*place, *arguments, "python", "train.py", "--fast"], standalone_mode=False
        )
        result.launched = launched  # type: ignore[attr-defined]
        return result

    return run


def test_the_job_is_launched_with_the_tuner_on(play: Play) -> None:
    result = play(
        "-np",
        "2",
        "--max-trials",
        "8",
        "--steps-per-trial",
        "5",
        "--study",
        "s.db",
        "--seed",
        "3",
        "--budget",
        "1.5%",
        "--horizon",
        "500",
    )
    (options,) = result.launched  # type: ignore[attr-defined]
    assert options.command == ["python", "train.py", "--fast"] and options.num_proc == 2
    assert options.settings == {
        "RINGTUNE_AUTOTUNE": "1",
        "RINGTUNE_AUTOTUNE_MAX_TRIALS": "8",
        "RINGTUNE_AUTOTUNE_STEPS_PER_TRIAL": "5",
        "RINGTUNE_AUTOTUNE_STUDY": "s.db",
        "RINGTUNE_AUTOTUNE_SEED": "3",
        "RINGTUNE_AUTOTUNE_BUDGET": "1.5",
        "RINGTUNE_AUTOTUNE_HORIZON": "500",
    }
    assert options.run_dir.is_absolute() and options.echo


@pytest.mark.parametrize("budget", ["much", "101%", "-1", ""])
def test_a_budget_is_a_percentage(play: Play, budget: str) -> None:
    result = play("--budget", budget)
    assert f"--budget {budget}: expected a share of the training time" in str(result.exception)


def test_progress_is_plain_lines_without_a_terminal(play: Play) -> None:
    result = play("-np", "2", records=(START, DEFAULT, TRIAL, NoteRecord("the advisor is gone"), IMPROVED))
    lines = re.sub(r"at most \d+ (s|min) left", "at most LEFT left", result.output).splitlines()
    assert "\x1b" not in result.output and "\r" not in result.output
    assert lines[0].startswith("ringtune tune: searching fusion, cycle on 2 ranks, at most 16 trials of 10")
    assert lines[1:5] == [
        "ringtune tune: trial 0 (default): fusion 16 MiB, cycle 1 ms: 2.00 ms a step; best 0.0 %, lost so far 0.00 s; "
        "1 of at most 16 trials",
        "ringtune tune: trial 1 (suggested): fusion 4 MiB, cycle 0.5 ms: 1.00 ms a step, gain 50.0 %; best 50.0 %, "
        "won so far 2.00 s; 2 of at most 16 trials, at most LEFT left to search",
        "ringtune tune: the advisor is gone",
        "ringtune tune: improved: fusion 4 MiB, cycle 0.5 ms; confirmed",
    ]
    assert lines[-3:] == [
        "ringtune tune: to keep it, set:",
        "RINGTUNE_FUSION_THRESHOLD=4194304",
        "RINGTUNE_CYCLE_TIME=0.5",
    ]


def test_a_session_as_one_document(play: Play, tmp_path: Path) -> None:
    written = (START, DEFAULT, TRIAL, NoteRecord("the advisor is gone"), IMPROVED)
    result = play("-np", "2", "--json", records=written, exit_code=4)
    document = json.loads(result.stdout)
    assert [parse(one) for one in document["records"]] == list(written)
    assert parse(document["result"]) == IMPROVED
    assert document["keep"] == ["RINGTUNE_FUSION_THRESHOLD=4194304", "RINGTUNE_CYCLE_TIME=0.5"]
    assert (document["run"], document["exit_code"]) == (str(tmp_path / "run"), 4)
    assert "trial 1 (suggested)" in result.stderr and "improved: fusion 4 MiB" in result.stderr
    (options,) = result.launched  # type: ignore[attr-defined]
    assert not options.echo and options.on_line is not None, "the job's own output would break the document"


def test_a_document_of_a_session_that_never_began(play: Play) -> None:
    result = play("--json")
    document = json.loads(result.stdout)
    assert (document["result"], document["keep"], document["records"]) == (None, [], [])
    assert "nothing was tuned" in result.stderr


def test_keeping_the_default_is_a_normal_end(play: Play) -> None:
    result = play(records=(START, DEFAULT, KEPT))
    assert result.return_value == 0
    assert "keeping the default (fusion 16 MiB, cycle 1 ms): no other setting looked faster" in result.output
    assert "RINGTUNE_" not in result.output


def test_a_training_that_ends_first_says_so_and_what_is_kept(play: Play) -> None:
    result = play(records=(START, DEFAULT, TRIAL, INTERRUPTED))
    assert "interrupted (fusion 16 MiB, cycle 1 ms): training ended early" in result.output
    assert "the trials are kept; the next session of this job starts from the best of them" in result.output


def test_a_killed_job_still_keeps_its_trials(play: Play) -> None:
    result = play(records=(START, DEFAULT, TRIAL), exit_code=137)
    assert result.return_value == 137
    assert "without saying so; 2 trials are kept" in result.output


def test_a_script_that_never_trains_is_told(play: Play) -> None:
    result = play()
    assert "nothing was tuned" in result.output and "init()" in result.output and "--restarts" in result.output


def test_the_environment_can_be_written(play: Play, tmp_path: Path) -> None:
    play("--apply", str(tmp_path / "tuned.env"), records=(START, DEFAULT, TRIAL, IMPROVED))
    text = (tmp_path / "tuned.env").read_text()
    assert text == (
        "# ringtune tune: improved: fusion 4 MiB, cycle 0.5 ms\n"
        "RINGTUNE_FUSION_THRESHOLD=4194304\nRINGTUNE_CYCLE_TIME=0.5\n"
    )


def test_a_file_that_cannot_be_written_is_named(play: Play, tmp_path: Path) -> None:
    result = play("--apply", str(tmp_path), records=(START, IMPROVED))
    assert f"{tmp_path}: cannot be written: it is a folder" in str(result.exception)


def test_an_earlier_session_in_the_same_run_is_not_told_again(play: Play, tmp_path: Path) -> None:
    with Journal(layout.tuning_journal(tmp_path / "old")) as journal:
        journal.write([START, IMPROVED])
    result = play("--run-dir", str(tmp_path / "old"), records=(START, DEFAULT, KEPT))
    assert "improved" not in result.output


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.write([])
    with Follower(path, lambda record: None) as follower:
        with Journal(tmp_path / "other.jsonl") as other:
            other.write([START])
        whole = (tmp_path / "other.jsonl").read_bytes()
        path.write_bytes(whole[:30])
        follower._read()
        assert follower.records == []
        path.write_bytes(whole)
    assert follower.records == [START]


def test_the_table_of_a_terminal() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120, color_system=None)
    with LiveView(console) as view:
        for record in (START, DEFAULT, TRIAL, NoteRecord("a note")):
            view.show(record)
        view.line(1, "stdout", "epoch 3: loss 0.5")
        plain = Console(file=StringIO(), width=120)
        plain.print(view.picture())
        view.show(IMPROVED)
    output = plain.file.getvalue()  # type: ignore[attr-defined]
    assert "fusion 4 MiB, cycle 0.5 ms" in output and "suggested" in output and "1.00 ms" in output
    assert "trial 2 of at most 16; best: fusion 4 MiB, cycle 0.5 ms, gain 50.0 % (40.0 % to 60.0 %)" in output
    assert "won so far 2.00 s" in output
    assert "[1] epoch 3: loss 0.5" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_confirmation_counts_more_than_a_lucky_trial() -> None:
    confirmed = TrialRecord(5, "confirm", "complete", FAST, 9, 20, Interval(1e6, 1e6, 1e6), Interval(0.1, 0.05, 0.2))
    assert better(TRIAL, confirmed) is confirmed and better(confirmed, TRIAL) is confirmed
    early = TrialRecord(6, "sampler", "stopped-early", FAST, 9, 3, Interval(1, 1, 1), Interval(0.9, 0.9, 0.9))
    assert better(TRIAL, early) is TRIAL and better(DEFAULT, TRIAL) is TRIAL
