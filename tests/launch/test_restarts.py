"""`ringtune run --restarts N`: jobs with fixed ranks that are started again."""

from __future__ import annotations

import json
import signal
import sys
import time
from functools import partial
from typing import Any

import pytest

from ringtune.launch import restarts
from ringtune.launch.launcher import launch
from ringtune.launch.options import LaunchOptions
from tests.conftest import needs
from tests.launch.conftest import Jobs, wait_for

needs("ringtune._native")

MEET = """
from ringtune import session
from ringtune.operations import Barrier
restart = int(os.environ["RINGTUNE_RESTART"])
here = session.init()
here.wait(here.submit(Barrier("all")))
"""


def run_json(jobs: Jobs) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((jobs.folder / "r" / "run.json").read_text(encoding="utf-8"))
    return found


def restarted(jobs: Jobs, number: int, text: str) -> Any:
    flags = ["-np", "2", "--restarts", str(number), "--run-dir", "r", "--logs"]
    return jobs.run(*flags, sys.executable, jobs.script(MEET + text))


def test_a_failed_job_is_started_again_until_it_ends_well(jobs: Jobs) -> None:
    found = restarted(jobs, 3, 'print("start", restart); sys.exit(7 * rank if restart < 2 else 0)')
    assert found.returncode == 0, found.stderr
    lines = [f"[{rank}] start {number}" for number in range(3) for rank in range(2)]
    assert sorted(found.stdout.splitlines()) == sorted(lines)
    assert "rank 1 on localhost exited with code 7" in found.stderr
    assert "starting the job again (1 of 3 restarts)" in found.stderr
    assert "starting the job again (2 of 3 restarts)" in found.stderr
    record = run_json(jobs)
    assert (record["status"], record["exit_code"], record["failure"]) == ("finished", 0, None)
    assert [(one["rank"], one["exit_code"]) for one in record["failed_starts"]] == [(1, 7), (1, 7)]
    log = (jobs.folder / "r" / "logs" / "rank-00001.log").read_text(encoding="utf-8")
    assert log.splitlines() == ["start 0", "start 1", "start 2"]


def test_a_job_that_fails_every_time_ends_with_the_last_code(jobs: Jobs) -> None:
    found = restarted(jobs, 1, 'print("at", restart, file=sys.stderr); sys.exit(3 + restart if rank else 0)')
    assert found.returncode == 4
    assert "ringtune: not started again: it has failed 2 times" in found.stderr
    record = run_json(jobs)
    assert record["status"] == "failed"
    assert (record["failure"]["exit_code"], record["failure"]["last_lines"]) == (4, ["at 1"])
    assert [(one["exit_code"], one["last_lines"]) for one in record["failed_starts"]] == [(3, ["at 0"])]


def test_ranks_are_told_which_start_it_is_only_where_there_may_be_several(jobs: Jobs) -> None:
    script = jobs.script('print(os.environ.get("RINGTUNE_RESTART"))')
    for flags, said in (([], "None"), (["--restarts", "2"], "0")):
        found = jobs.run("-np", "1", "--no-run-dir", *flags, sys.executable, script, environ={"RINGTUNE_RESTART": "5"})
        assert found.stdout == f"[0] {said}\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sys.exit(2)", "it failed within 60 s, before init()"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it failed within 60 s, before init()"),
        ("os._exit(127)", "the command was not found"),
        ("os._exit(126)", "the command cannot be executed"),
    ],
)
def test_a_job_that_cannot_work_is_not_started_over_and_over(
    jobs: Jobs, text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_AT_ONCE_S", 60.0)  # a starved machine takes its time to fail at once
    command = [sys.executable, jobs.script(f'print("started"); {text}')]
    said: list[str] = []
    lines: list[str] = []
    seen = partial(_keep, lines)
    code = launch(LaunchOptions(command, 2, restarts=5, on_say=said.append, on_line=seen, echo=False))
    assert code != 0 and said[-1] == f"not started again: {reason}"
    assert len(lines) <= 2 and not any("again (" in one for one in said)


def _keep(lines: list[str], rank: int, stream: str, line: str) -> None:
    lines.append(line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once(jobs: Jobs, number: signal.Signals) -> None:
    script = jobs.script(MEET + 'open("here", "a").write("x"); time.sleep(600)')
    process = jobs.start("-np", "2", "--restarts", "5", "--no-run-dir", sys.executable, script)
    there = jobs.folder / "here"
    wait_for(lambda: there.exists() and len(there.read_text(encoding="utf-8")) == 2)
    begun = time.monotonic()
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == 128 + number and b"again" not in stderr
    assert there.read_text(encoding="utf-8") == "xx" and time.monotonic() - begun < 30


def test_an_elastic_job_is_refused(jobs: Jobs) -> None:
    found = jobs.run("-np", "2", "--min-np", "1", "--restarts", "1", "true")
    assert found.returncode == 2 and "--restarts is for jobs with fixed ranks" in found.stderr
