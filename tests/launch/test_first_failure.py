"""Which rank the launcher names, and whose exit code it has, when others fail because they lost that one."""

from __future__ import annotations

import pytest

from tests.launch.conftest import Jobs

SCRIPT = """
import numpy
import ringtune.numpy as hvd

hvd.init()
for batch in range(20):
    if batch == 7 and rank == {culprit}:
        {how}
    hvd.allreduce(numpy.ones(4, numpy.float32), name="a")
"""


@pytest.mark.slow
@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize(
    ("how", "code"), [("sys.exit(7)", 7), ("raise ValueError('bad batch')", 1), ("os._exit(9)", 9)], ids=str
)
def test_the_launcher_names_the_rank_that_the_others_have_lost(how: str, code: int, culprit: int, jobs: Jobs) -> None:
    result = jobs.run_script(3, SCRIPT.format(how=how, culprit=culprit))
    assert result.returncode == code, result.stderr
    words = [line for line in result.stderr.splitlines() if line.startswith("ringtune: ") and "exited" in line]
    assert words and all(f"rank {culprit} on localhost exited with code {code}, " in line for line in words), words


@pytest.mark.slow
def test_of_one_that_ended_well_the_survivor_says_what_it_lost(jobs: Jobs) -> None:
    result = jobs.run_script(2, SCRIPT.format(how="sys.exit(0)", culprit=1))
    assert result.returncode == 1, result.stderr
    assert "rank 0 on localhost exited with code 1, " in result.stderr
    assert "since it had lost another rank: ShutDown: " in result.stderr
    assert "rank 1 on host localhost has come to the end of its script" in result.stderr.splitlines()[-1]
