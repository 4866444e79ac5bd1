"""Ranks of `ringtune run` inside a task of another launcher keep nothing of that task's rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringtune.bootstrap.launchers import find_task
from ringtune.launch.environment import Job, rank_environment, worker_environment
from ringtune.launch.hosts import Slot
from tests.core.test_launchers import RECORDED, TENSORFLOW


@pytest.mark.parametrize("case", [case for case, row in RECORDED.items() if row[0] != TENSORFLOW])
def test_a_rank_of_another_launcher_is_taken_away(case: str) -> None:
    job = Job("name", 2, "x" * 32, "127.0.0.1", 1, Path("/run"))
    for make in (rank_environment, worker_environment):
        environ = make(job, Slot(0, "localhost", 0, 2), "127.0.0.1", RECORDED[case][0], {})
        assert find_task(environ) is None
