"""Fixtures: jobs of ranks that have a framework, kept over the tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.frameworks import cases
from tests.jobs.fixtures import pytest_runtest_makereport
from tests.jobs.launching import Job, stop_server, variables

__all__ = ["pytest_runtest_makereport"]


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[None]:
    """Give all jobs a folder for temporary files: TensorFlow deletes its own at exit, which a killed rank never has.

    The process that ranks are forked from ends after the last test.
    """
    with TemporaryDirectory(prefix="frameworks") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        yield
        stop_server()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Job]]:
    """Jobs with an open session by their size, which tests leave usable."""
    kept: dict[int, Job] = {}
    yield kept
    for one in kept.values():
        one.__exit__()


@pytest.fixture
def job(
    jobs: dict[int, Job], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Job]]:
    """Return a function that gives a job of so many ranks with an open session; a failed test costs it."""
    front: str = request.module.FRONT

    def find(size: int = 2) -> Job:
        if size not in jobs:
            jobs[size] = start_job(size, tmp_path_factory.mktemp("job"), front)
        return jobs[size]

    yield find
    if getattr(request.node, "failed", False):
        while jobs:
            jobs.popitem()[1].__exit__()


def start_job(size: int, folder: Path, front: str, **settings: Any) -> Job:
    started = Job(size, folder, variables(size, dynamic_process_sets=1, **settings))
    started.run(cases.open_session, front=front)
    return started


@pytest.fixture
def fresh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Job]]:
    """Return a function that starts a job of its own, for a test that breaks it."""
    started: list[Job] = []

    def start(size: int = 2, **settings: Any) -> Job:
        started.append(start_job(size, tmp_path, request.module.FRONT, **settings))
        return started[-1]

    yield start
    for one in started:
        one.__exit__()
