"""What every rank of a job in an engine does: join, train some steps, and leave a file with its times.

Engines return results each in its own way, and one of them the result of any rank: a file says it alike for all.
Modules of frameworks are imported where they are used: the driver needs none.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

RINGTUNE, GLOO = "ringtune", "gloo"


def train(kind: str, folder: str, steps: int, width: int) -> None:
    """Train a multilayer perceptron.

    Args:
        kind: `RINGTUNE`: its `DistributedOptimizer`; `GLOO`: DistributedDataParallel, in the group that the engine
            has opened, else in one of Gloo.
        folder: where the file is left.
        steps: number of measured steps.
        width: of the layers; a step reduces about 12 * width ** 2 bytes.
    """
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(3)))
    join, prepare = {RINGTUNE: (_join_ringtune, _with_ringtune), GLOO: (_join_gloo, _with_ddp)}[kind]
    rank = join()
    ready_unix_s = time.time()
    net, optimizer = prepare(model)
    batch = torch.randn(8, width)

    def step() -> None:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()

    times_ns = []
    step()  # the first one makes buffers and plans
    for _ in range(steps):
        began_ns = time.monotonic_ns()
        step()
        times_ns.append(time.monotonic_ns() - began_ns)
    found = {"ready_unix_s": ready_unix_s, "step_ns": times_ns}
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    _leave(kind)


def _join_ringtune() -> int:
    import torch

    import ringtune.torch as hvd

    hvd.init()
    hvd.allreduce(torch.ones(1), name="ready")
    return hvd.rank()


def _join_gloo() -> int:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    return dist.get_rank()


def _with_ringtune(model: Any) -> tuple[Any, Any]:
    import torch

    import ringtune.torch as hvd

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())


def _with_ddp(model: Any) -> tuple[Any, Any]:
    import torch

    net = torch.nn.parallel.DistributedDataParallel(model)
    return net, torch.optim.SGD(net.parameters(), lr=1e-3)


def _leave(kind: str) -> None:
    if kind == RINGTUNE:
        import ringtune.torch as hvd

        hvd.shutdown()
