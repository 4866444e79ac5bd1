"""Processes that ranks start and that call init() themselves: none of them takes its rank's place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.launching import variables
from tests.launch.conftest import DRIVER

EVALUATION = """
import os, sys
import numpy, ringtune.numpy as hvd
hvd.init()
total = float(hvd.allreduce(numpy.ones(1), op=hvd.Sum)[0])
os.write(1, f"{sys.argv[1]} {hvd.rank()} of {hvd.size()} sum {total:g}\\n".encode())
"""

TRAINING = """
# init() at the top of the script: each spawned worker imports it again as __mp_main__.
import multiprocessing, os, subprocess, sys
import torch, ringtune, ringtune.torch as hvd
hvd.init()

class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        return torch.tensor([float(hvd.size()), float(hvd.allreduce(torch.ones(1), op=hvd.Sum))])

def reduced():
    return int(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="sum"))

if __name__ == "__main__":
    here = os.path.dirname(__file__)
    def evaluate(*command):
        subprocess.run([*command, here + "/evaluation.py", command[0].rsplit("/")[-1]], check=True)
    # As scripts export their place for torch.distributed, which workers inherit.
    os.environ.update(RANK=str(hvd.rank()), WORLD_SIZE=str(hvd.size()), MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    assert reduced() == 2
    if hvd.rank() == 1:
        loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
        for epoch in range(2):
            assert [batch.tolist() for batch in loader] == [[[1.0, 1.0]] * 2] * 2
        evaluate(sys.executable)
    else:
        evaluate("env", "bash", "-c", 'exec "$0" "$@"', sys.executable)
        subprocess.run([sys.executable, os.environ["DRIVER"], "run", "-np", "2", "--no-run-dir", sys.executable,
                        here + "/evaluation.py", "nested"], check=True)
        print("nested call", ringtune.run(lambda: 7, num_proc=2), flush=True)
    assert reduced() == 2
    os.write(1, b"done\\n")
"""


@pytest.mark.slow
def test_spawned_workers_sub_processes_and_nested_jobs(tmp_path: Path) -> None:
    (tmp_path / "evaluation.py").write_text(EVALUATION, encoding="utf-8")
    (tmp_path / "training.py").write_text(TRAINING, encoding="utf-8")
    run = [sys.executable, str(DRIVER), "run", "-np", "2", "--run-dir", "run", "--timeline", "t.json"]
    # A rank may stand behind any number of wrappers: what starts it is no rank.
    wrapped = ["bash", "-c", 'env A=1 "$0" "$@"; exit $?', sys.executable, "training.py"]
    done = subprocess.run(
        [*run, *wrapped], cwd=tmp_path, capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RINGTUNE_START_TIMEOUT": "60", "DRIVER": str(DRIVER)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(
        [
            "[0] done",
            "[0] env 0 of 1 sum 1",
            "[0] [0] nested 0 of 2 sum 2",
            "[0] [1] nested 1 of 2 sum 2",
            "[0] nested call [7, 7]",
            "[1] done",
            f"[1] {Path(sys.executable).name} 0 of 1 sum 1",
        ]
    )
    # Workers of two epochs and two evaluations are none of the job's ranks: one sentence for all.
    assert done.stderr.count("none of the job's 2 ranks and becomes a job of its own, rank 0 of 1") == 1
    assert len(list((tmp_path / "run" / "timeline").glob("rank-*"))) == 2


SPAWNING = """
import os, sys
import torch.multiprocessing, ringtune.torch as hvd

def rank(number, port):
    os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    hvd.init()
    total = float(hvd.allreduce(torch.ones(1), op=hvd.Sum))
    os.write(1, f"{hvd.rank()} of {hvd.size()} sum {total:g}\\n".encode())

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, (sys.argv[1],), nprocs=2)
"""


@pytest.mark.slow
def test_ranks_that_a_process_without_a_rank_spawns(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING, encoding="utf-8")
    port = variables(2)["RINGTUNE_STORE"].rpartition(":")[2]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script, port], capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 of 2 sum 2", "1 of 2 sum 2"]
    assert "warning" not in done.stderr
