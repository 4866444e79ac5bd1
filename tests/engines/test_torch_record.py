"""`ringtune record` around the launchers of DeepSpeed and Accelerate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ringtune.timeline.inputs import load
from ringtune.timeline.vocabulary import Stage
from tests.ports import free_port

pytest.importorskip("deepspeed", reason="deepspeed is not installed; `make test-engines` makes an environment")
pytest.importorskip("accelerate", reason="accelerate is not installed; `make test-engines` makes an environment")

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
HANG_S = 240.0  # a bound on hangs, not a measure
DEEPSPEED = """
import deepspeed, torch
# An operation for inference, which each rank would compile for minutes, and which leaves shared memory behind.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
config = {
    "train_batch_size": 8,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
model = torch.nn.Linear(64, 8)
engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
for _ in range(4):
    engine.backward(engine(torch.ones(4, 64)).sum())
    engine.step()
print(f"steps {engine.global_steps}\\n", end="")  # in one piece: both ranks write into one pipe, without a buffer
"""
ACCELERATE = """
import accelerate, os, torch
accelerator = accelerate.Accelerator(cpu=True)
model = torch.nn.Linear(64, 8)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(4):
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(4, 64)).sum())
    optimizer.step()
    if step == 2 and accelerator.process_index == 1 and "FAILS" in os.environ:
        raise ValueError("planted in step 2")
print(f"steps {step + 1} of {accelerator.num_processes}\\n", end="")
accelerator.end_training()
"""


def record(folder: Path, script: str, launcher: list[str], **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a script by a launcher under `ringtune record`."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "ringtune.cli", "record", "-o", "trace.json", "--", sys.executable, *launcher],
        cwd=folder,
        env={**os.environ, **changes},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_collectives_of_a_job_of_deepspeeds_launcher(tmp_path: Path) -> None:
    launcher = [str(BIN / "deepspeed"), "--num_accelerators", "2", "--master_port", str(free_port()), "train.py"]
    done = record(tmp_path, DEEPSPEED, launcher, DS_ACCELERATOR="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("steps 4") == 2
    assert "timeline of 2 ranks" in done.stderr
    spans = load(tmp_path / "trace.json").spans
    assert set(spans.rank.tolist()) == {0, 1} and len(set(spans.batch.tolist())) > 4, "collectives of every step"


def accelerated(folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run two ranks of Accelerate's launcher, which calls torch's elastic agent, and look at what it leaves."""
    # With --cpu instead of --multi_gpu it starts one process, whatever their number says.
    launcher = [str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port())]
    launcher += ["train.py"]
    (folder / "home").mkdir()
    home = {"HOME": str(folder / "home"), "HF_HOME": str(folder / "home")}
    done = record(folder, ACCELERATE, launcher, OMP_NUM_THREADS="1", **home, **changes)
    assert {path.name for path in folder.iterdir()} == {"train.py", "home", "trace.json", "runs"}, done.stderr
    return done


def test_collectives_of_a_job_of_accelerates_launcher(tmp_path: Path) -> None:
    done = accelerated(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("steps 4 of 2") == 2
    assert "timeline of 2 ranks" in done.stderr
    spans = load(tmp_path / "trace.json").spans
    runs = spans.take(spans.stage == Stage.COMMUNICATE)
    reduced = runs.take(np.array(["ALLREDUCE" in name for name in runs.name_texts()]))
    for rank in (0, 1):
        assert set(reduced.of_rank(rank).step.tolist()) >= {0, 1, 2, 3}, "collectives of every step"
    assert set(reduced.of_rank(0).batch.tolist()) == set(reduced.of_rank(1).batch.tolist())


def test_what_a_failed_job_of_accelerates_launcher_recorded_is_kept(tmp_path: Path) -> None:
    done = accelerated(tmp_path, FAILS="1")
    assert done.returncode == 1 and "ValueError: planted in step 2" in done.stderr
    spans = load(tmp_path / "trace.json").spans
    for rank in (0, 1):
        mine = spans.of_rank(rank)
        assert set(mine.of_stage(Stage.NEGOTIATE).step.tolist()) >= {0, 1, 2}
        # A rank may end before it has seen that its last collective is done.
        assert set(mine.of_stage(Stage.COMMUNICATE).step.tolist()) >= {0, 1}
