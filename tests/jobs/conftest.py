"""Fixtures: one pool of ranks for all tests that leave the job usable, fresh jobs for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.cases import common
from tests.jobs.fixtures import pytest_runtest_makereport, server
from tests.jobs.launching import Job, variables

__all__ = ["pytest_runtest_makereport", "server"]

LARGEST = 5


class Pool:
    """Processes that are kept over tests and join one job after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: dict[int, Job] = {}
        self._joined: tuple[int, str, str] | None = None

    def job(self, size: int, transport: str, gpu_data_path: str) -> Job:
        """Return the first ranks of the pool as a job with an open session."""
        if LARGEST not in self._jobs:
            self._jobs[LARGEST] = Job(LARGEST, self._folder)
        job = self._first(size)
        if self._joined != (size, transport, gpu_data_path):
            self._jobs[LARGEST].run(common.close_session)
            environ = variables(size, transport=transport, gpu_data_path=gpu_data_path)
            for number, rank in enumerate(job.ranks):
                mine = {name: value.replace("{rank}", str(number)) for name, value in environ.items()}
                rank.send(common.open_session, {"environ": mine})
            for number, result in enumerate(job.collect()):
                assert result == ((number, size),), result or job.ranks[number].death()
            self._joined = (size, transport, gpu_data_path)
        return job

    def discard(self) -> None:
        """Forget the processes, for example because a test has failed half-way."""
        for job in self._jobs.values():
            job.__exit__()
        self._jobs.clear()
        self._joined = None

    def _first(self, size: int) -> Job:
        job = Job.__new__(Job)
        job.size, job.ranks = size, self._jobs[LARGEST].ranks[:size]
        return job


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(tmp_path_factory.mktemp("pool"))
    yield made
    made.discard()


@pytest.fixture
def job(pool: Pool, request: pytest.FixtureRequest) -> Iterator[Callable[..., Job]]:
    """Return a function that gives a job of the pool; a failed test costs the pool its processes."""
    yield lambda size, transport="shm", gpu_data_path="auto": pool.job(size, transport, gpu_data_path)
    if getattr(request.node, "failed", False):
        pool.discard()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Return a function that starts a job of its own with an open session; it is killed after the test."""
    started: list[Job] = []

    def start(size: int, *, join: bool = True, environ: dict[str, str] | None = None, **settings: Any) -> Job:
        job = Job(size, tmp_path, environ if environ is not None else variables(size, **settings))
        started.append(job)
        if join:
            job.run(common.open_session)
        return job

    yield start
    for one in started:
        one.__exit__()
