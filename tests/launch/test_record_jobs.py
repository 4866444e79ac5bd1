"""Jobs of the kinds that people run, unmodified, each with something planted that the analyses must name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from ringtune.timeline.inputs import load
from ringtune.timeline.vocabulary import Stage
from tests.conftest import find_tool
from tests.launch.test_record import BIN, read, record, run

STEPS = 30

FSDP2 = f"""
import time, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
rank = dist.get_rank()

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return {STEPS}

    def __getitem__(self, at):
        time.sleep(0.03 * rank)
        return torch.randn(64)

layers = [torch.nn.Linear(64, 64) for _ in range(3)]
model = torch.nn.Sequential(*layers)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for module in (*layers, model):
    fully_shard(module, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters())
for batch in torch.utils.data.DataLoader(Rows(), batch_size=1):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""

ZERO = f"""
import time, torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo")

class Costly(torch.nn.Linear):
    def forward(self, rows):
        time.sleep(0.002 * len(rows))
        return super().forward(rows)

model = torch.nn.parallel.DistributedDataParallel(Costly(64, 64))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)

def closure():  # as Lightning's loop has it: the optimizer calls forward and backward
    optimizer.zero_grad()
    loss = model(torch.randn(2 if dist.get_rank() else 12, 64)).sum()
    loss.backward()
    return loss

for step in range({STEPS}):
    if step % 2:
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
dist.destroy_process_group()
"""

MEETING = """
rank, size = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", 0))), 3
dist.init_process_group("gloo", store=dist.FileStore("meeting", size), rank=rank, world_size=size)
"""


def pipeline(meet: str, steps: int, slow_s: float) -> str:
    """Return a script of stages that send to each other, of which rank 1 takes longer; ``meet`` sets rank and size."""
    return f"""
import time, torch, torch.distributed as dist
{meet}
layer = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
for step in range({steps}):
    optimizer.zero_grad()
    rows = torch.randn(8, 32)
    if rank > 0:
        dist.recv(rows, rank - 1)
    rows.requires_grad_()
    time.sleep({slow_s} * (rank == 1))
    out = layer(rows)
    if rank < size - 1:
        dist.send(out.detach(), rank + 1)
        gradient = torch.zeros_like(out)
        dist.recv(gradient, rank + 1)
        out.backward(gradient)
    else:
        out.sum().backward()
    if rank > 0:
        dist.send(rows.grad, rank - 1)
    optimizer.step()
dist.destroy_process_group()
"""


SUB_GROUPS = f"""
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
weight = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range({STEPS}):
    weight.grad = torch.ones(8)
    time.sleep(0.04 * (rank == 3))
    dist.all_reduce(weight.grad, group=pairs[rank // 2])
    optimizer.step()
dist.destroy_process_group()
"""

LATE_BUCKET = f"""
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.03 * rank)  # before the gradients of the layers below
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, rows):
        return self.high(Slow.apply(self.low(rows)))

model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({STEPS}):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


FAILS = """
import torch, ringtune.torch as hvd
hvd.init()
weight = torch.nn.Parameter(torch.ones(64))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), named_parameters=[("weight", weight)])
for step in range(12):
    optimizer.zero_grad()
    weight.sum().backward()
    if step == 8 and hvd.rank() == 1:
        raise ValueError("planted in step 8")
    optimizer.step()
"""


def run_under_ringtune(folder: Path, script: str, ranks: int) -> Any:
    return run(folder, script, [BIN / "ringtune", "run", "-np", str(ranks), "--timeline", "trace.json", sys.executable])


def assert_late(folder: Path, rank: int, where: str) -> dict[str, Any]:
    """This rank is the first that is blamed, for most steps, by computing in this range."""
    found: dict[str, Any] = read(folder, "stragglers")
    first = found["verdicts"][0]
    assert (first["rank"], first["cause"], first["where"]) == (rank, "compute", where), found["verdicts"]
    assert first["late_steps"] > STEPS / 2
    return found


@pytest.mark.slow
def test_the_slow_loader_of_an_fsdp2_job_is_named(tmp_path: Path) -> None:
    done = run_under_ringtune(tmp_path, FSDP2, 2)
    assert done.returncode == 0, done.stderr
    assert_late(tmp_path, 1, "data loading")
    assert read(tmp_path, "summary", "--all-steps")["steps"]["count"] == STEPS


@pytest.mark.long
def test_the_larger_batch_of_a_zero_job_is_named_and_its_steps_count_once(tmp_path: Path) -> None:
    done = record(tmp_path, ZERO)
    assert done.returncode == 0, done.stderr
    assert_late(tmp_path, 0, "forward")
    assert read(tmp_path, "summary", "--all-steps")["steps"]["count"] == STEPS


@pytest.mark.slow
def test_the_slow_stage_of_a_pipeline_under_mpirun_sets_the_pace(tmp_path: Path) -> None:
    mpirun = [find_tool("mpi"), "--allow-run-as-root", "--oversubscribe", "-np", "3", sys.executable]
    done = run(
        tmp_path, pipeline(MEETING, STEPS, 0.03), [BIN / "ringtune", "record", "-o", "trace.json", "--", *mpirun]
    )
    assert done.returncode == 0, done.stderr
    summary = read(tmp_path, "summary")
    assert summary["headline"].startswith("rank 1 sets the pace: it waited "), summary["headline"]
    assert read(tmp_path, "summary", "--all-steps")["steps"]["count"] == STEPS
    spans = load(tmp_path / "trace.json").spans
    rows = zip(spans.rank, spans.tensor_texts(), spans.stage, strict=True)
    messages = {(int(rank), text) for rank, text, stage in rows if stage == Stage.COMMUNICATE}
    assert messages == {
        (0, "world: send to 1"), (0, "world: recv from 1"), (1, "world: send to 0"), (1, "world: recv from 0"),
        (1, "world: send to 2"), (1, "world: recv from 2"), (2, "world: send to 1"), (2, "world: recv from 1"),
    }  # fmt: skip


@pytest.mark.slow
def test_the_late_rank_of_a_sub_group_is_named(tmp_path: Path) -> None:
    done = run_under_ringtune(tmp_path, SUB_GROUPS, 4)
    assert done.returncode == 0, done.stderr
    found = assert_late(tmp_path, 3, "")
    assert found["tensors"][0]["tensor"] == "group 2: allreduce 0"


@pytest.mark.slow
def test_the_bucket_for_which_the_ranks_wait_is_named(tmp_path: Path) -> None:
    done = run_under_ringtune(tmp_path, LATE_BUCKET, 2)
    assert done.returncode == 0, done.stderr
    found = assert_late(tmp_path, 1, "backward")
    assert found["tensors"][0]["tensor"] == "world: bucket 1 (low.bias to low.weight)"


@pytest.mark.slow
def test_the_doctor_names_the_rank_that_failed_and_where_the_others_stood(tmp_path: Path) -> None:
    done = run_under_ringtune(tmp_path, FAILS, 2)
    assert done.returncode == 1, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    found = read(tmp_path, "doctor", source=folder)
    failed = found["failure"]
    assert (failed["ranks"][0]["rank"], failed["blamed"]) == (1, [1])
    assert failed["ranks"][0]["lines"][-1] == "ValueError: planted in step 8"
    # The other rank may have been the first to end: it was told of the loss while the first still wrote its traceback.
    first = r"Rank 1 (on localhost ended with code 1 after .*: |ended by )ValueError: planted"
    assert re.match(first, found["headline"])
    stood = {one["rank"]: one for one in failed["ranks"]}
    assert "rank 1 on host localhost ended its script with ValueError: planted in step 8" in stood[0]["error"]
    assert stood[1]["own"] and not stood[0]["own"]
    assert stood[0]["step"] in (7, 8) and "weight" in stood[0]["collective"] and stood[1]["stood"]
