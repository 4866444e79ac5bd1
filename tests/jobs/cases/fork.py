"""What forked children of ranks do, and scripts whose ranks fork."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune.session import Session
from tests.jobs.cases.training import make_network

Case = Callable[[], Any]


def _cases(pending: int, tensor: torch.Tensor, optimizer: Any, model: torch.nn.Module) -> dict[str, Case]:
    session = Session.current()
    assert session is not None

    def train() -> None:
        model(torch.ones(2, 20)).sum().backward()
        optimizer.step()

    return {
        "allreduce": lambda: hvd.allreduce(torch.ones(2), name="in a child"),
        "allreduce in place, as before": lambda: hvd.allreduce_(tensor, name="short", op=hvd.Sum),
        "allgather": lambda: hvd.allgather(torch.ones(2)),
        "broadcast": lambda: hvd.broadcast(torch.ones(2), 0),
        "alltoall": lambda: hvd.alltoall(torch.ones(2)),
        "reducescatter": lambda: hvd.reducescatter(torch.ones(2)),
        "barrier": hvd.barrier,
        "join": hvd.join,
        "poll": lambda: hvd.poll(pending),
        "synchronize": lambda: hvd.synchronize(pending),
        "training": train,
        "end of a step": session.end_step,
        "init": hvd.init,
        "start_timeline": lambda: hvd.start_timeline("never.json"),
        "knobs": lambda: session.knobs,
    }


def forked_calls() -> tuple[dict[str, list[str]], list[int], float]:
    """Let a child try everything while its parent holds an operation.

    Returns:
        Error class and message by call; rank and size as the child sees them; a sum reduced by the parents afterwards.
    """
    tensor, model = torch.ones(4), make_network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters())
    for _ in range(5):  # the path without Python begins with the second
        hvd.allreduce_(tensor, name="short", op=hvd.Sum)
        optimizer.zero_grad()
        model(torch.ones(2, 20)).sum().backward()
        optimizer.step()
    pending = hvd.allreduce_async(torch.ones(1), name="pending", op=hvd.Sum)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = _tried(_cases(pending, tensor, optimizer, model))
            os.write(write, json.dumps([answer, [hvd.rank(), hvd.size()]]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        answer, rank_and_size = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert float(hvd.synchronize(pending)) == hvd.size()
    return answer, rank_and_size, float(hvd.allreduce(torch.ones(1), name="afterwards", op=hvd.Sum))


def _tried(cases: dict[str, Case]) -> dict[str, list[str]]:
    found = {}
    for name, case in cases.items():
        try:
            case()
            found[name] = ["", ""]
        except Exception as error:
            found[name] = [type(error).__name__, str(error)]
    return found


SCRIPT = """
import multiprocessing, os, signal, sys, time
import torch, ringtune.torch as hvd

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor([float(index + hvd.rank())])

def total(step):
    return int(hvd.allreduce(torch.ones(1), name="sum", op=hvd.Sum))

hvd.init()
assert total(0) == 2
child = os.fork()
if child == 0:
    sys.exit(3)  # ends with everything an interpreter does at its end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert total(1) == 2
loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
for batch in loader:
    assert total(2) == 2 and batch.shape == (4, 1)
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
child.start()
os.kill(child.pid, signal.SIGKILL)
child.join()
assert total(3) == 2
hvd.shutdown()
hvd.init()
assert total(4) == 2
os.write(1, b"fine\\n")
"""
