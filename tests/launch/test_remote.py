"""Ranks on other hosts, through an ssh on PATH that runs its command here."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.launch.conftest import Jobs

FAKE_SSH = """#!{python}
import json, os, sys
words = sys.argv[1:]
options = []
while words[0].startswith("-"):
    options.append(words.pop(0))
    if options[-1] in ("-o", "-p", "-i"):
        options.append(words.pop(0))
host, command = words[0], words[1]
with open("{log}", "a") as log:
    print(json.dumps([host, options, command]), file=log)
if host == "192.0.2.66":
    print("warning: noise", file=sys.stderr)
    sys.exit("ssh: connect to host 192.0.2.66 port 22: No route to host")
if host == "192.0.2.67":
    sys.exit(96)
# A login shell on another host: little environment, another folder.
os.chdir("/")
os.execve("/bin/sh", ["sh", "-c", command], {{"PATH": os.environ["PATH"], "HOST_ONLY": host}})
"""


@pytest.fixture
def ssh(jobs: Jobs) -> dict[str, str]:
    folder = jobs.folder / "bin"
    folder.mkdir()
    program = folder / "ssh"
    program.write_text(FAKE_SSH.format(python=sys.executable, log=jobs.folder / "ssh.log"), encoding="utf-8")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "MINE": "with 'quotes' and $signs"}


def calls(jobs: Jobs) -> list[list[object]]:
    return [json.loads(line) for line in (jobs.folder / "ssh.log").read_text().splitlines()]


def test_ranks_on_two_hosts(jobs: Jobs, ssh: dict[str, str]) -> None:
    script = jobs.script(
        """
        names = "RANK SIZE LOCAL_RANK LOCAL_SIZE HOSTNAME".split()
        print(*(os.environ["RINGTUNE_" + name] for name in names), os.environ["MINE"], os.getcwd())
        """
    )
    result = jobs.run(
        "-np", "3", "-H", "192.0.2.1:2,localhost:1", "-p", "2222", "-i", "key", "--no-run-dir", "--verbose",
        sys.executable, script, environ=ssh,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    tail = f"with 'quotes' and $signs {jobs.folder}"
    assert sorted(result.stdout.splitlines()) == [
        f"[0] 0 3 0 2 192.0.2.1 {tail}",
        f"[1] 1 3 1 2 192.0.2.1 {tail}",
        f"[2] 2 3 0 1 localhost {tail}",
    ]
    assert "ranks 0-1 on 192.0.2.1 by ssh" in result.stderr
    assert {host for host, _, _ in calls(jobs)} == {"192.0.2.1"}
    for _, options, command in calls(jobs):
        assert isinstance(options, list) and isinstance(command, str)
        assert options[-4:] == ["-p", "2222", "-i", "key"]
        assert "quotes" not in command, "the environment must not stand on a command line that others can see"


def test_exit_code_comes_back(jobs: Jobs, ssh: dict[str, str]) -> None:
    script = jobs.script("sys.exit(11) if rank else time.sleep(0)")
    result = jobs.run("-H", "192.0.2.1:1,192.0.2.2:1", "--no-run-dir", sys.executable, script, environ=ssh)
    assert result.returncode == 11
    assert "rank 1 on 192.0.2.2 exited with code 11" in result.stderr


def test_unreachable_host_is_one_sentence(jobs: Jobs, ssh: dict[str, str]) -> None:
    result = jobs.run("-H", "192.0.2.1:1,192.0.2.66:1", "--no-run-dir", "true", environ=ssh)
    assert result.returncode == 1
    assert result.stderr == (
        "ringtune: host 192.0.2.66 cannot be reached by ssh: "
        "ssh: connect to host 192.0.2.66 port 22: No route to host\n"
    )


def test_host_without_ringtune(jobs: Jobs, ssh: dict[str, str]) -> None:
    result = jobs.run("-H", "192.0.2.67:1", "--no-run-dir", "true", environ=ssh)
    assert result.stderr == (
        f"ringtune: host 192.0.2.67 has no {sys.executable}: "
        "install ringtune there at the same path, or share the folder\n"
    )


def test_command_that_is_not_there(jobs: Jobs, ssh: dict[str, str]) -> None:
    result = jobs.run("-H", "192.0.2.1:1", "--no-run-dir", str(Path("/no/such/program")), environ=ssh)
    assert result.returncode == 127
    assert "cannot start the rank: command '/no/such/program': No such file or directory" in result.stderr
