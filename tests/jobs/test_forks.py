"""Children that a rank forks after init(): they learn that they have no part in the job, and do not disturb it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.cases import fork as fork_cases
from tests.jobs.launching import Job, variables

GetJob = Callable[..., Job]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_call_in_a_child_is_refused_in_words(transport: str, fresh: GetJob) -> None:
    job = fresh(2, transport=transport)
    for rank, (answers, rank_and_size, total) in enumerate(job.run(fork_cases.forked_calls)):
        wrong = {
            name: [kind, message]
            for name, (kind, message) in answers.items()
            if kind != "InvalidArgument" or f"this process was forked from rank {rank}" not in message
        }
        assert not wrong
        assert rank_and_size == [rank, 2] and total == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_children_that_end_leave_the_job_whole(transport: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(fork_cases.SCRIPT, encoding="utf-8")
    templates = variables(2, transport=transport, timeline=tmp_path / "t.json", run_dir=tmp_path / "run")
    ranks = []
    for rank in range(2):
        mine = {name: value.replace("{rank}", str(rank)) for name, value in templates.items()}
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **mine}
        ranks.append(
            subprocess.Popen(
                [sys.executable, script], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        said = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for one in ranks:
            one.kill()
    assert [output for output, _ in said] == ["fine\n"] * 2
    assert not [error for _, error in said if "warning" in error or "Error" in error]
    assert [rank.returncode for rank in ranks] == [0, 0]
