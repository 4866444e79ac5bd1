"""torchrun's variables in elastic jobs: torch.distributed meets anew in each generation."""

from __future__ import annotations

import json
import sys

import pytest

from tests.launch.conftest import Jobs

TRAIN = """
import json, os, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
import ringtune.torch as hvd

hvd.init()

@hvd.elastic.run
def train(state):
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    dist.destroy_process_group()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT")
    told = [int(os.environ[name]) for name in names]
    print("told", json.dumps([state.batch, hvd.rank(), int(ones), *told]), flush=True)
    while state.batch < 4:
        hvd.allreduce(torch.ones(1), name="step")
        state.batch += 1
        state.commit()
        if state.batch == 2 and hvd.rank() == 1 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

train(hvd.elastic.TorchState(batch=0))
"""


@pytest.mark.slow
def test_torch_meets_anew_in_each_generation(jobs: Jobs) -> None:
    (jobs.folder / "train.py").write_text(TRAIN, encoding="utf-8")
    result = jobs.run("--no-run-dir", "-np", "2", "--min-np", "2", sys.executable, "train.py")
    assert result.returncode == 0, result.stderr
    told = [json.loads(line.split("told ")[1]) for line in result.stdout.splitlines() if "told " in line]
    first, second = sorted(told[:2]), sorted(told[2:])
    assert [one[:-1] for one in first] == [[0, 0, 2, 0, 2, 0, 2, 0, 1], [0, 1, 2, 1, 2, 1, 2, 0, 1]]
    assert [one[1:-1] for one in second] == [[0, 2, 0, 2, 0, 2, 0, 1], [1, 2, 1, 2, 1, 2, 0, 1]]
    ports = [{one[-1] for one in generation} for generation in (first, second)]
    assert len(ports[0]) == len(ports[1]) == 1 and ports[0] != ports[1], "another store for each set of ranks"


@pytest.mark.slow
def test_a_port_of_the_users_stays(jobs: Jobs) -> None:
    script = jobs.folder / "show.py"
    script.write_text(
        'import os, ringtune.torch as hvd\nhvd.init()\nprint(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])\n',
        encoding="utf-8",
    )
    environ = {"MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
    result = jobs.run("--no-run-dir", "-np", "1", "--min-np", "1", sys.executable, str(script), environ=environ)
    assert (result.returncode, result.stdout) == (0, "[0] node7 29500\n"), result.stderr
