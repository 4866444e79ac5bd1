"""Steps of a script without a `DistributedOptimizer` count without a line for it: it can be tuned like any other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = 6
DDP = f"""
import os
import sys
import torch
import torch.distributed as dist
import ringtune.torch.distributed

meeting = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("ringtune", store=meeting, rank=int(os.environ["RINGTUNE_RANK"]), world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
first = torch.optim.SGD(model.parameters(), lr=0.01)
second = torch.optim.SGD(model.parameters(), lr=0.0)
for _ in range({STEPS}):
    first.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    first.step()
    second.step()  # nothing was sent since: no step of its own
dist.destroy_process_group()
"""


BY_HAND = f"""
import torch
import ringtune.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 4)
first = torch.optim.SGD(model.parameters(), lr=0.01)
second = torch.optim.SGD(model.parameters(), lr=0.0)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
second.step()
for _ in range({STEPS}):
    first.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    for name, parameter in model.named_parameters():
        hvd.allreduce_(parameter.grad, name=name)
    first.step()
    second.step()
wrapped = hvd.DistributedOptimizer(first, model.named_parameters())
wrapped.zero_grad()
model(torch.ones(2, 4)).sum().backward()
wrapped.step()
hvd.allreduce(torch.ones(1), name="metric")
second.step()  # the steps are those of the optimizer that is wrapped
hvd.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "steps"), [(DDP, STEPS), (BY_HAND, STEPS + 1)], ids=["ddp", "by hand"])
def test_an_optimizers_step_ends_a_step(tmp_path: Path, program: str, steps: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(program)
    words = [str(Path(sys.executable).with_name("ringtune")), "run", "-np", "2", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(
        [*words, sys.executable, str(script), str(tmp_path / "meeting")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        lines = (tmp_path / "run" / "steps" / f"rank-0000{rank}.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(steps))
