"""A team's memory in PostgreSQL: what one session has stored is where the next one begins, wherever it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.advice import Near, Stored
from ringtune.tuner.advisor import ProcessAdvisor
from ringtune.tuner.restarts.choices import Choice
from ringtune.tuner.restarts.memory import StudyMemory
from ringtune.tuner.space import Space
from ringtune.tuner.study import StudyAdvisor, StudyOptions
from ringtune.tuner.wire import Setup
from tests.conftest import find_tool, needs
from tests.tuner.test_advisors import JOB, WORK, outcome, result, wait

FAST = Knobs(2 << 20, 300_000)
_SETTINGS = "-c listen_addresses= -c fsync=off -c dynamic_shared_memory_type=mmap -c shared_buffers=16MB"


@contextmanager
def server() -> Iterator[str]:
    """A server of its own, reached through a socket in its folder alone; gives the storage's URL.

    PostgreSQL refuses to run as root, so root starts it as a user without rights.
    """
    program = find_tool("postgresql")
    folder = Path(tempfile.mkdtemp(prefix="ringtune-pg-"))  # short: a socket's path has 107 characters at most
    as_user: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    if as_user:
        shutil.chown(folder, as_user["user"], as_user["group"])

    def ctl(*words: str) -> None:
        command = [program, "-D", str(folder / "data"), "-s", "-w", "-t", "240", *words]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder, check=False, **as_user
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    try:
        ctl("-o", "-A trust -U team --no-sync", "initdb")
        ctl("-o", f"{_SETTINGS} -k {folder}", "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql+psycopg://team@/postgres?host={folder}"
        finally:
            ctl("-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    needs("psycopg")
    with server() as url:
        yield url


@pytest.mark.slow
def test_a_result_is_shared_by_sessions(storage: str) -> None:
    """The first session is a rank's, with its advisor in another process; the others may be anywhere."""
    first = ProcessAdvisor(Setup(Space(), JOB, StudyOptions(storage)))
    first.open(WORK)
    assert wait(first.stored) == Stored(None, 0)
    suggestion = wait(first.ask)
    first.tell(outcome(suggestion.knobs, 0.9, suggestion.token, "sampler"))
    first.tell(outcome(FAST, 0.8))
    first.conclude(result("improved", FAST))
    first.close()
    again = StudyAdvisor(Space(), JOB, StudyOptions(storage))
    again.open(WORK)
    assert again.stored() == Stored(FAST, 2, confirmed=True)
    larger = StudyAdvisor(Space(), replace(JOB, world=8), StudyOptions(storage))
    larger.open(WORK)
    assert larger.stored() == Stored(None, 0, near=Near(Knobs(FAST.fusion_bytes, DEFAULTS.cycle_time_ns), 2, 1))
    study = optuna.load_study(study_name=f"ringtune-{JOB.fingerprint(WORK)}", storage=storage)
    assert sorted(trial.values[0] for trial in study.trials) == [0.8, 0.9]


def fresh_database(storage: str, name: str) -> str:
    """Make an empty database beside the one of that storage, and return its URL."""
    import psycopg

    host = storage.partition("?host=")[2]
    with psycopg.connect(host=host, user="team", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return storage.replace("/postgres?", f"/{name}?")


@pytest.mark.parametrize("name", ["first", "second", "third"])
def test_jobs_may_begin_at_once(name: str, storage: str) -> None:
    """Jobs of one kind make one study, whoever makes the tables, and lose no trial of each other."""
    job = replace(JOB, cpu="at once")
    storage = fresh_database(storage, name)

    def session(number: int) -> StudyAdvisor:
        advisor = StudyAdvisor(Space(), job, StudyOptions(storage))
        advisor.open(WORK)
        advisor.tell(outcome(Knobs((1 + number) << 20, 300_000), 0.9))
        advisor.close()
        return advisor

    with ThreadPoolExecutor(4) as pool:
        advisors = list(pool.map(session, range(4)))
    assert [advisor.failure for advisor in advisors] == [""] * 4
    study = optuna.load_study(study_name=f"ringtune-{job.fingerprint(WORK)}", storage=storage)
    assert len(study.trials) == 4


def test_restarts_are_remembered_too(storage: str) -> None:
    said: list[str] = []
    choices = [Choice("RINGTUNE_SOCKETS_PER_PEER", ("2", "4"))]
    setting = (("RINGTUNE_SOCKETS_PER_PEER", "4"),)
    first = StudyMemory(JOB, choices, [storage], said.append)
    first.open(WORK)
    first.tell(setting, 0.8)
    first.conclude(setting)
    known = StudyMemory(JOB, choices, [storage], said.append).open(WORK)
    assert (known.confirmed, known.trials, said) == (setting, 1, [])
