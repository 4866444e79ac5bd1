"""`ringtune run --timeline` around torch.distributed on GPUs: torch's fake backend, on the fake driver's streams.

That backend's works are as NCCL's: done, as far as the host knows, when they stand in the current stream.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringtune.timeline.analysis.batches import batch_table
from ringtune.timeline.analysis.staged import device_clock_errors
from ringtune.timeline.inputs import load
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import Stage
from tests import fake_cuda
from tests.conftest import find_tool, needs

needs("torch")

ROOT = Path(__file__).parents[2]

SCRIPT = """
import ctypes, json, os, time
import torch, torch.distributed as dist
import ringtune.torch as hvd
from torch._C._distributed_c10d import FakeWork
from torch.testing._internal.distributed.fake_pg import FakeStore
from tests.fake_torch import Stream, cuda, to_gpu

del FakeWork.wait  # NCCL's works have no method of their own
cuda.install()
driver = cuda.gpu.driver
driver.fake_cuda_set_eager(1)
hvd.init()
dist.init_process_group("fake", rank=hvd.rank(), world_size=hvd.size(), store=FakeStore())
stream = ctypes.c_void_p(cuda.current_stream().cuda_stream)
said = []

def held(call):
    driver.fake_cuda_hold(stream)
    called = time.monotonic_ns()
    call()
    returned = time.monotonic_ns()
    time.sleep(0.01)
    released = time.monotonic_ns()
    driver.fake_cuda_release(stream)
    said.append((called, returned, released, time.monotonic_ns()))

ones = to_gpu(torch.ones(1024))
held(lambda: dist.all_reduce(ones, async_op=True).wait())
held(lambda: dist.broadcast(ones, 0))
held(lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, ones, 1 - hvd.rank())]))
for _ in range(5):
    dist.all_gather([to_gpu(torch.zeros(4)), to_gpu(torch.zeros(4))], to_gpu(torch.ones(4)), async_op=True)
with open(os.environ["TEST_SAID"] + str(hvd.rank()), "w") as file:
    json.dump(said, file)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, list[list[int]]]:
    """A job's timeline, and what rank 0 saw: when a call began and returned, when its stream went on, and was done."""
    find_tool("compiler")
    folder = tmp_path_factory.mktemp("gpus")
    (folder / "script.py").write_text(SCRIPT)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RINGTUNE_CUDA_DRIVER": str(fake_cuda.build()),
        "TEST_SAID": str(folder / "said"),
    }
    command: list[Any] = [sys.executable, "-m", "ringtune.cli", "run", "-np", "2", "--no-run-dir"]
    command += ["--timeline", folder / "trace.json", sys.executable, folder / "script.py"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return load(folder / "trace.json"), json.loads((folder / "said0").read_text())


def _one(trace: Trace, stage: Stage, tensor: str) -> tuple[int, int]:
    spans = trace.spans.of_rank(0).of_stage(stage)
    times = zip(spans.tensor_texts(), spans.begin_ns.tolist(), spans.end_ns.tolist(), strict=True)
    ((begin, end),) = [(begin, end) for name, begin, end in times if name == tensor]
    return begin, end


@pytest.mark.parametrize("at", [0, 1], ids=["async", "blocking"])
def test_a_collective_ran_when_the_stream_of_the_gpu_came_to_it(job: tuple[Trace, list[list[int]]], at: int) -> None:
    trace, said = job
    name = ("world: allreduce 0", "world: broadcast 0")[at]
    error = device_clock_errors(trace)[0]
    assert 0 < error < 1_000_000
    # Rank 0's clock is the timeline's, whose beginning is not said: distances count, from a moment within the call.
    noted = _one(trace, Stage.NEGOTIATE, name)[0]
    called, returned, released, done = said[at]
    first, last = released - returned - error, done - called + error
    for stage in (Stage.COMMUNICATE, Stage.DEVICE_WAIT):
        begin, end = (moment - noted for moment in _one(trace, stage, name))
        assert first <= begin <= end <= last
    begin, end = (moment - noted for moment in _one(trace, Stage.WAIT_FOR_DATA, name))
    assert abs(begin) <= error and first <= end <= last


def test_several_that_are_launched_together_are_timed_when_that_is_done(job: tuple[Trace, list[list[int]]]) -> None:
    trace, said = job
    begin, end = _one(trace, Stage.COMMUNICATE, "world: send to 1")
    called = _one(trace, Stage.NEGOTIATE, "world: send to 1")[0]
    assert said[2][2] - said[2][1] - device_clock_errors(trace)[0] <= end - called
    assert begin <= end


def test_analyses_take_them_as_collectives_from_gpu_to_gpu(job: tuple[Trace, list[list[int]]]) -> None:
    table = batch_table(job[0])
    assert len(table.ids) == 7 and table.ranks == (0, 1)
    assert table.whole.all() and table.directly.all()
