"""`ringtune record` around DeepSpeed's own launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune.timeline.inputs import load
from tests.ports import free_port

pytest.importorskip("deepspeed", reason="deepspeed is not installed; `make test-engines` makes an environment")

pytestmark = pytest.mark.slow

HANG_S = 240.0  # a bound on hangs, not a measure
TRAIN = """
import deepspeed, torch
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


def test_collectives_of_a_job_of_deepspeeds_launcher(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    port = free_port()
    launcher = [sys.executable, str(Path(sys.executable).with_name("deepspeed"))]
    done = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", "record", "-o", "trace.json", "--", *launcher,
         "--num_accelerators", "2", "--master_port", str(port), "train.py"],
        cwd=tmp_path,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )  # fmt: skip
    for left in Path("/dev/shm").glob(f"deepspeed_*_{port}_*"):  # DeepSpeed's own buffers
        left.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("steps 4") == 2
    assert "timeline of 2 ranks" in done.stderr
    spans = load(tmp_path / "trace.json").spans
    assert set(spans.rank.tolist()) == {0, 1} and len(set(spans.batch.tolist())) > 4, "collectives of every step"
