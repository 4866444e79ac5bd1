"""Jobs in odd surroundings: few descriptors, folders that cannot be written, strangers, closed streams, IPv6 alone."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.launch.conftest import DRIVER, HANG_S, Jobs

MEET = """
import resource
from ringtune import session
from ringtune.operations import Barrier
here = session.init()
here.wait(here.submit(Barrier("all")))
"""
RUN = (sys.executable, str(DRIVER), "run")


def run_as(
    jobs: Jobs, words: Sequence[str], limits: tuple[int, int] | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in the jobs' folder, under a soft and a hard limit of open files."""
    return subprocess.run(
        words,
        cwd=jobs.folder,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, limits) if limits else None,
    )


def isolated(kind: str, before: str, words: Sequence[str]) -> list[str]:
    """Return a command that runs in namespaces of its own after some shell commands; skips where they are forbidden."""
    if os.geteuid() != 0 or subprocess.run(["unshare", kind, "true"], capture_output=True, check=False).returncode:
        missing(f"needs root for `unshare {kind}`")
    return ["unshare", kind, "sh", "-c", f'set -e; {before}; exec "$@"', "sh", *words]


# -- descriptors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "flags"), [(1, ["--no-run-dir"]), (2, ["--logs", "--output-filename", "o"])])
def test_a_job_is_refused_exactly_where_its_ranks_could_not_meet(jobs: Jobs, ranks: int, flags: list[str]) -> None:
    words = [*RUN, "-np", str(ranks), *flags, sys.executable, jobs.script(MEET + 'print("met")')]
    refused = run_as(jobs, words, (12, 12))
    said = re.fullmatch(
        rf"ringtune: a job of {ranks} ranks? needs (\d+) descriptors in the launcher, and the limit of open files "
        r"\(RLIMIT_NOFILE\) is 12; raise it: ulimit -n \d+\n",
        refused.stderr,
    )
    assert said and refused.returncode == 2 and not refused.stdout, refused.stderr
    needed = int(said[1])
    one_less = run_as(jobs, words, (needed - 1, needed - 1))
    assert one_less.returncode == 2 and f"is {needed - 1}; raise it" in one_less.stderr
    enough = run_as(jobs, words, (needed, needed))
    assert enough.returncode == 0 and sorted(enough.stdout.split()) == sorted(
        [f"[{rank}]" for rank in range(ranks)] + ["met"] * ranks
    ), enough.stderr


def test_a_soft_limit_is_raised_for_the_launcher_and_kept_for_its_ranks(jobs: Jobs) -> None:
    script = jobs.script(MEET + "print(*resource.getrlimit(resource.RLIMIT_NOFILE))")
    words = [*RUN, "-np", "2", "--no-run-dir", "--output-filename", "o", "--no-prefix", sys.executable, script]
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1] % (1 << 62), 512)
    found = run_as(jobs, words, (21, hard))
    limits = [tuple(map(int, line.split())) for line in found.stdout.splitlines()]
    # A rank raises its own as far as it may need, not to the launcher's.
    assert len(limits) == 2 and all(21 <= soft < 64 and most == hard for soft, most in limits), found.stderr
    found = run_as(jobs, words, (15, hard))
    assert found.stdout == f"{hard} {hard}\n" * 2, found.stderr


# -- folders -------------------------------------------------------------------------------------------------------

READ_ONLY = "mount -t tmpfs -o ro none place"
FULL = "mount -t tmpfs -o size=64k none place; dd if=/dev/zero of=place/filler bs=64k count=1 2>/dev/null"


@pytest.mark.slow
@pytest.mark.parametrize("state", [READ_ONLY, FULL], ids=["read-only", "full"])
def test_a_job_that_wanted_no_run_folder_goes_on_without(jobs: Jobs, state: str) -> None:
    (jobs.folder / "place").mkdir()
    before = f"mkdir -p place; {state}; cd place"
    script = jobs.script(MEET + 'print(here.run_folder, os.environ.get("RINGTUNE_RUN_DIR"))')
    command = [sys.executable, script]
    found = run_as(jobs, isolated("-m", before, [*RUN, "-np", "2", "--no-prefix", *command]))
    assert (found.returncode, found.stdout) == (0, "None None\n" * 2), found.stderr
    said = [line for line in found.stderr.splitlines() if "run folder" in line]
    assert len(said) == 1 and "the job goes on without a run folder" in said[0] and "cannot be written" in said[0]
    for asked in (["--run-dir", "r"], ["--logs"], ["--tag", "t"], ["--timeline", str(jobs.folder / "t.json")]):
        refused = run_as(jobs, isolated("-m", before, [*RUN, "-np", "2", *asked, *command]))
        assert refused.returncode == 1 and not refused.stdout
        assert re.fullmatch(r"ringtune: .*cannot be written: .*\n", refused.stderr), refused.stderr
    # By hand: a folder that was named is required; one that autotuning alone would like is not.
    alone = {"RINGTUNE_RANK": "0", "RINGTUNE_SIZE": "1"}
    named = run_as(jobs, isolated("-m", before, command), environ={**alone, "RINGTUNE_RUN_DIR": "r"})
    assert named.returncode == 1 and "RingtuneError: " in named.stderr and "cannot be written" in named.stderr
    tuned = run_as(jobs, isolated("-m", before, command), environ={**alone, "RINGTUNE_AUTOTUNE": "1"})
    assert tuned.returncode == 0 and tuned.stderr.count("the job goes on without a run folder") == 1, tuned.stderr


def test_a_deleted_working_folder_is_said_in_a_sentence(jobs: Jobs) -> None:
    script = jobs.script(MEET)
    words = [
        "sh",
        "-c",
        'mkdir gone; cd gone; rmdir ../gone; exec "$@"',
        "sh",
        *RUN,
        "-np",
        "1",
        sys.executable,
        script,
    ]
    for flags in ([], ["--no-run-dir"]):
        found = run_as(jobs, [*words[:-2], *flags, *words[-2:]])
        assert found.returncode == 1
        assert found.stderr == "ringtune: the working folder has been deleted; go to another (cd) and start again\n"


# -- streams and networks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lose_nothing_but_themselves(jobs: Jobs, closed: str) -> None:
    text = MEET + 'print("out", rank, flush=True); print("err", rank, file=sys.stderr, flush=True)'
    words = [*RUN, "-np", "2", "--run-dir", "r", "--logs", sys.executable, jobs.script(text)]
    found = run_as(jobs, ["sh", "-c", f'exec "$@" {closed}', "sh", *words])
    assert found.returncode == 0, found.stderr
    for rank in range(2):
        log = (jobs.folder / "r" / "logs" / f"rank-{rank:05d}.log").read_text(encoding="utf-8")
        assert sorted(log.splitlines()) == [f"err {rank}", f"out {rank}"]
    assert (">&-" in closed) == (found.stdout == "")


def test_a_job_meets_where_the_loopback_has_no_ipv4(jobs: Jobs) -> None:
    if not Path("/proc/net/if_inet6").exists():
        missing("needs IPv6")
    words = [*RUN, "-np", "2", "--no-run-dir", "--no-prefix", sys.executable, jobs.script(MEET + 'print("met")')]
    before = "ip link set lo up; ip addr del 127.0.0.1/8 dev lo"
    for transport in ("auto", "tcp"):
        found = run_as(jobs, isolated("-n", before, words), environ={"RINGTUNE_TRANSPORT": transport})
        assert (found.returncode, found.stdout) == (0, "met\nmet\n"), found.stderr


def test_strangers_at_every_port_of_a_job_cost_it_a_line(jobs: Jobs) -> None:
    found = jobs.run_script(
        2,
        """
        import socket
        import psutil
        from ringtune import session
        from ringtune.operations import Barrier
        here = session.init()
        host, _, port = os.environ["RINGTUNE_STORE"].rpartition(":")
        own = [one.laddr[:2] for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"]
        assert own, "a rank listens"
        for place in [(host, int(port)), *own]:
            for number in range(100):
                with socket.create_connection(place, 10) as stranger:
                    stranger.sendall((b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\xff" * 64, b"", bytes(200))[number % 4])
        for number in range(100):  # whatever they sent has been looked at by then
            here.wait(here.submit(Barrier(f"all.{number}")))
        print("met")
        """,
        "--no-prefix",
        *("--transport", "tcp"),
    )
    assert (found.returncode, found.stdout) == (0, "met\nmet\n"), found.stderr
    turned_away = [line for line in found.stderr.splitlines() if "not from this job" in line]
    assert 1 <= len(turned_away) <= 3, found.stderr  # the launcher and each rank: one line a minute
    assert len(found.stderr.splitlines()) <= 6, found.stderr
