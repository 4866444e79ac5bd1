"""The command line: messages and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest

from ringtune import cli, command_table
from ringtune.errors import RingtuneError, UsageError


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command ``boom`` that raises what is put into the list."""
    errors: list[BaseException] = []

    @click.command()
    def boom() -> None:
        raise errors[0]

    monkeypatch.setitem(cli.COMMANDS, "boom", cli.Entry("ringtune.boom:boom", "Raises.", "tuner"))
    module = type(sys)("ringtune.boom")
    module.boom = boom  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ringtune.boom", module)
    return errors


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RingtuneError("no trace there"), 1, "ringtune: no trace there\n"),
        (UsageError("give a file"), 2, "ringtune: give a file\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (
            ModuleNotFoundError("No module named 'optuna'", name="optuna"),
            1,
            "ringtune: this needs optuna, which is not installed: pip install 'ringtune[tuner]'\n",
        ),
        (
            ModuleNotFoundError("No module named 'dash.x'", name="dash.x"),
            1,
            "ringtune: this needs dash, which is not installed: pip install 'ringtune[dashboard]'\n",
        ),
    ],
)
def test_errors_become_one_line(
    raising: list[BaseException], capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    raising.append(error)
    assert cli.main(["boom"]) == code
    assert capsys.readouterr().err == message


def test_a_bug_keeps_its_traceback(raising: list[BaseException]) -> None:
    raising.append(ModuleNotFoundError("No module named 'xyz'", name="xyz"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["boom"])


def test_traceback_for_developers(
    raising: list[BaseException], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGTUNE_TRACEBACK", "1")
    raising.append(RingtuneError("broken"))
    assert cli.main(["boom"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_extra_is_named_when_the_command_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "tune", cli.Entry("ringtune.absent_extra:tune", "", "tuner"))

    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(command_table, "import_module", fail)
    assert cli.main(["tune"]) == 1
    assert "pip install 'ringtune[tuner]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "hint"),
    [("chek", "did you mean 'check'?"), ("timelines", "'timeline'"), ("xyz", "the commands are: run,")],
)
def test_unknown_command(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word]) == 2
    assert hint in capsys.readouterr().err


def test_unknown_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--jsn"]) == 2
    assert "--json" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ringtune ")


def test_check_as_json() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", "check", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert {"ringtune", "native runtime", "python", "torch", "NCCL", "GPUs", "cores"} <= set(found)
    assert found["python"]["available"]


def test_check_table_names_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    from ringtune.check import find_all

    assert cli.main(["check"]) == 0
    text = capsys.readouterr().out
    assert [finding.name for finding in find_all() if finding.name not in text] == []


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "warning"),
    [
        (2, 1, 2, ""),
        (2, 0, 2, ""),
        (4, 2, 8, ""),
        (3, 0, 8, ""),
        (2, 2, 2, "2 ranks x 2 threads on 2 cores wait for one another: set OMP_NUM_THREADS=1, or unset it and "),
        (2, 8, 8, "2 ranks x 8 threads on 8 cores wait for one another: set OMP_NUM_THREADS=4, or unset it and "),
        (4, 0, 2, "4 ranks x 1 thread on 2 cores wait for one another: start at most 2 ranks (-np 2)"),
        (4, 3, 2, "4 ranks x 3 threads on 2 cores wait for one another: start at most 2 ranks (-np 2) and set OMP_"),
    ],
)
def test_crowded_cores(ranks: int, threads: int, cores: int, warning: str) -> None:
    from ringtune.check import crowding

    text = crowding(ranks, threads, cores)
    assert text.startswith(warning)
    assert bool(text) == bool(warning)


def test_check_warns_of_more_ranks_than_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "-np", "4096"]) == 0
    assert "cores: 4096 ranks x" in capsys.readouterr().out


def test_check_build_flag_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--check-build"]) == 0
    assert "native runtime" in capsys.readouterr().out


def test_variables_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--variables", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["RINGTUNE_CYCLE_TIME"]["default"] == "1"
    assert rows["RINGTUNE_CYCLE_TIME"]["unit"] == "ms"
    assert rows["RINGTUNE_CYCLE_TIME"]["horovod"] == "HOROVOD_CYCLE_TIME"
