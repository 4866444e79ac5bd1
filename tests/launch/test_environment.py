from __future__ import annotations

from pathlib import Path

from ringtune.launch.environment import Job, address_towards, for_other_host, rank_environment
from ringtune.launch.hosts import Slot
from ringtune.launch.launcher import run_name

JOB = Job("job1", 4, 4711, Path("/runs/a"))


def test_rank_environment() -> None:
    base = {"PATH": "/bin", "RINGTUNE_RANK": "9", "RINGTUNE_RUN_DIR": "/other", "RINGTUNE_CYCLE_TIME": "5", "RANK": "3"}
    environ = rank_environment(JOB, Slot(2, "node1", 0, 2), "10.0.0.1", base, {"RINGTUNE_CYCLE_TIME": "2"})
    assert environ == {
        "PATH": "/bin",
        "RINGTUNE_RANK": "2",
        "RINGTUNE_SIZE": "4",
        "RINGTUNE_LOCAL_RANK": "0",
        "RINGTUNE_LOCAL_SIZE": "2",
        "RINGTUNE_HOSTNAME": "node1",
        "RINGTUNE_STORE": "10.0.0.1:4711",
        "RINGTUNE_JOB": "job1",
        "RINGTUNE_LAUNCHER": "1",
        "RINGTUNE_RUN_DIR": "/runs/a",
        "RINGTUNE_CYCLE_TIME": "2",
        "PYTHONUNBUFFERED": "1",
    }


def test_no_run_folder_no_variable() -> None:
    job = Job("job1", 1, 4711, None)
    environ = rank_environment(job, Slot(0, "a", 0, 1), "::1", {"RINGTUNE_RUN_DIR": "/other"}, {})
    assert "RINGTUNE_RUN_DIR" not in environ
    assert environ["RINGTUNE_STORE"] == "[::1]:4711"


def test_what_belongs_to_this_host_stays_here() -> None:
    environ = {
        "HOSTNAME": "a",
        "SSH_AUTH_SOCK": "/s",
        "DISPLAY": ":0",
        "TMPDIR": "/t",
        "PWD": "/p",
        "HOME": "/h",
        "A": "b",
    }
    assert for_other_host(environ) == {"HOME": "/h", "A": "b"}


def test_address_towards_this_machine() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


def test_run_name() -> None:
    assert run_name(["python", "-u", "dir/train.py", "--epochs", "3"]) == "train"
    assert run_name(["python", "-m", "package.train"]) == "package.train"
    assert run_name(["/usr/bin/env", "x"]) == "env"
