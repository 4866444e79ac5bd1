from __future__ import annotations

from pathlib import Path

from ringtune.launch.environment import Job, address_towards, for_other_host, meeting_place, rank_environment
from ringtune.launch.hosts import Slot
from ringtune.launch.launcher import run_name
from ringtune.launch.routes import Routes

JOB = Job("job1", 4, "secret", "127.0.0.1", 4711, Path("/runs/a"))


def test_rank_environment() -> None:
    base = {"PATH": "/bin", "RINGTUNE_RANK": "9", "RINGTUNE_RUN_DIR": "/other", "RINGTUNE_CYCLE_TIME": "5", "RANK": "3"}
    base |= {"RINGTUNE_SECRET": "of another job", "RINGTUNE_SECRET_FILE": "/secrets/other"}
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
        "RINGTUNE_SECRET": "secret",
        "RINGTUNE_LAUNCHER": "1",
        "RINGTUNE_RUN_DIR": "/runs/a",
        "RINGTUNE_CYCLE_TIME": "2",
        "PYTHONUNBUFFERED": "1",
    }


def test_no_run_folder_no_variable() -> None:
    job = Job("job1", 1, "secret", "127.0.0.1", 4711, None)
    environ = rank_environment(job, Slot(0, "a", 0, 1), "::1", {"RINGTUNE_RUN_DIR": "/other"}, {})
    assert "RINGTUNE_RUN_DIR" not in environ
    assert environ["RINGTUNE_STORE"] == "[::1]:4711"


def test_torchruns_variables_are_set() -> None:
    """What torchrun's documentation promises each rank, but for what belongs to its own agent."""
    job = Job("job1", 5, "secret", "127.0.0.1", 4711, None, ("::1", 4712), ("a", "b"))
    foreign = {"RANK": "7", "GROUP_RANK": "9", "ROLE_NAME": "trainer", "TORCHELASTIC_RUN_ID": "x"}
    environ = rank_environment(job, Slot(3, "b", 1, 3), "::1", foreign, {})
    assert {name: value for name, value in environ.items() if "RINGTUNE" not in name} == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "5",
        "MASTER_ADDR": "::1",
        "MASTER_PORT": "4712",
        "PYTHONUNBUFFERED": "1",
    }


def test_what_the_user_set_for_torch_stays() -> None:
    job = Job("job1", 2, "secret", "127.0.0.1", 4711, None, ("127.0.0.1", 4712), ("a",))
    environ = rank_environment(job, Slot(1, "a", 1, 2), "::1", {"MASTER_ADDR": "here", "RANK": "7"}, {})
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"], environ["RANK"]) == ("here", "4712", "1")


def test_a_meeting_place() -> None:
    host, port = meeting_place("localhost", True, [], Routes())
    assert host == "127.0.0.1" and 0 < port < 65536
    assert meeting_place("localhost", True, ["127.0.0.1"], Routes())[0] == "127.0.0.1"
    host, port = meeting_place("me@node1", False, ["node2"], Routes())
    assert host == "node1" and 20_000 <= port < 30_000


def test_a_meeting_place_is_where_trying_found_it() -> None:
    found = Routes({"node1": "192.0.2.1", "node2": "192.0.2.1"}, {"node2": "198.51.100.2"})
    assert meeting_place("localhost", True, ["node1", "node2"], found)[0] == "192.0.2.1"
    assert meeting_place("node1", False, ["node2"], found)[0] == "node1"
    assert meeting_place("node2", False, ["node1"], found)[0] == "198.51.100.2"
    assert meeting_place("here", True, ["node1"], Routes({}, {"here": "203.0.113.1"}))[0] == "203.0.113.1"


def test_a_rank_uses_the_address_that_was_found() -> None:
    job = Job("job1", 2, "secret", "127.0.0.1", 1, None, routes=Routes({"a": "192.0.2.9"}, {"a": "198.51.100.2"}))
    environ = rank_environment(job, Slot(0, "a", 0, 1), job.store_towards("a"), {}, {})
    assert environ["RINGTUNE_INTERFACE_ADDRESS"] == "198.51.100.2" and environ["RINGTUNE_STORE"] == "192.0.2.9:1"
    assert "RINGTUNE_INTERFACE_ADDRESS" not in rank_environment(job, Slot(1, "b", 0, 1), "192.0.2.9", {}, {})


def test_what_belongs_to_this_host_stays_here() -> None:
    environ = {
        "HOSTNAME": "a",
        "SSH_AUTH_SOCK": "/s",
        "DISPLAY": ":0",
        "TMPDIR": "/t",
        "PWD": "/p",
        "XDG_RUNTIME_DIR": "/r",
        "XDG_CACHE_HOME_OF": "/o",
        "XDG_CACHE_HOME": "/c",
        "HOME": "/h",
        "A": "b",
    }
    assert for_other_host(environ) == {"XDG_CACHE_HOME": "/c", "HOME": "/h", "A": "b"}


def test_address_towards_this_machine() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


def test_run_name() -> None:
    assert run_name(["python", "-u", "dir/train.py", "--epochs", "3"]) == "train"
    assert run_name(["python", "-m", "package.train"]) == "package.train"
    assert run_name(["/usr/bin/env", "x"]) == "env"
