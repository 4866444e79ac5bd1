"""What ranks do in the tests of collectives that fail under torch's own layers: DDP, FSDP, hooks, futures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[], Any]


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Linear(20, 20), nn.Linear(20, 1))


def _loss(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(4, 6)).sum()
    return loss


def _ddp(group: Any, **options: Any) -> Step:
    model = DistributedDataParallel(_network(), process_group=group, **options)
    return lambda: _loss(model).backward()


def _hooked(group: Any, hook: Any, state: Any = None, **options: Any) -> Step:
    model = DistributedDataParallel(_network(), process_group=group, **options)
    if isinstance(hook, dist.BuiltinCommHookType):
        model._register_builtin_comm_hook(hook)
    else:
        model.register_comm_hook(state, hook)
    return lambda: _loss(model).backward()


def _sparse(group: Any, **options: Any) -> Step:
    network = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 1))
    model = DistributedDataParallel(network, process_group=group, **options)
    return lambda: model(torch.tensor([1, 3])).sum().backward()


def _power(group: Any) -> Step:
    state = powerSGD_hook.PowerSGDState(group, 1, start_powerSGD_iter=2)
    return _hooked(group, powerSGD_hook.powerSGD_hook, state)


def _local(group: Any) -> Step:
    return _hooked(group, post_localSGD_hook.post_localSGD_hook, post_localSGD_hook.PostLocalSGDState(group, group, 99))


def _no_sync(group: Any) -> Step:
    model = DistributedDataParallel(_network(), process_group=group)

    def step() -> None:
        for index in range(3):
            with model.no_sync() if index < 2 else contextlib.nullcontext():
                _loss(model).backward()

    return step


def _joined(group: Any) -> Step:
    model = DistributedDataParallel(_network(), process_group=group, broadcast_buffers=False)

    def step() -> None:
        with model.join():
            _loss(model).backward()

    return step


def _fsdp1(group: Any) -> Step:
    model = FullyShardedDataParallel(nn.Linear(6, 2), process_group=group, device_id=torch.device("cpu"))
    return lambda: _loss(model).backward()


def _fsdp2(group: Any) -> Step:
    model = nn.Linear(6, 2)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    return lambda: _loss(model).backward()


def _zero(group: Any) -> Step:
    model = _network()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.1)

    def step() -> None:
        _loss(model).backward()
        optimizer.step()

    return step


def _functional(group: Any) -> Step:
    return lambda: functional.all_reduce(torch.ones(3), "sum", group) + 1


def _operator(group: Any) -> Step:
    operators = torch.ops._c10d_functional
    return lambda: operators.wait_tensor(operators.all_reduce(torch.ones(3), "sum", group.group_name))


def _work(group: Any) -> Any:
    return dist.all_reduce(torch.ones(3), group=group, async_op=True)


def _never_waited(group: Any) -> Step:
    def step() -> None:
        for _ in range(5):
            _work(group)
        dist.barrier(group)

    return step


STYLES: dict[str, Callable[[Any], Step]] = {
    "ddp": _ddp,
    "buckets": lambda group: _ddp(group, bucket_cap_mb=0.001),
    "static": lambda group: _ddp(group, static_graph=True),
    "unused": lambda group: _ddp(group, find_unused_parameters=True),
    "views": lambda group: _ddp(group, gradient_as_bucket_view=True),
    "all reduce hook": lambda group: _hooked(group, default_hooks.allreduce_hook),
    "fp16 hook": lambda group: _hooked(group, default_hooks.fp16_compress_hook),
    "static fp16 hook": lambda group: _hooked(group, default_hooks.fp16_compress_hook, static_graph=True),
    "unused fp16 hook": lambda group: _hooked(group, default_hooks.fp16_compress_hook, find_unused_parameters=True),
    "wrapped hook": lambda group: _hooked(group, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
    "built-in hook": lambda group: _hooked(group, dist.BuiltinCommHookType.ALLREDUCE),
    "built-in fp16 hook": lambda group: _hooked(group, dist.BuiltinCommHookType.FP16_COMPRESS),
    "built-in static fp16 hook": lambda group: _hooked(
        group, dist.BuiltinCommHookType.FP16_COMPRESS, static_graph=True
    ),
    "sparse gradients": _sparse,
    "unused sparse gradients": lambda group: _sparse(group, find_unused_parameters=True),
    "power": _power,
    "local": _local,
    "no_sync": _no_sync,
    "join": _joined,
    "fsdp1": _fsdp1,
    "fsdp2": _fsdp2,
    "zero": _zero,
    "functional": _functional,
    "operator": _operator,
    "never waited": _never_waited,
    "future": lambda group: lambda: _work(group).get_future().wait(),
    "then": lambda group: lambda: _work(group).get_future().then(lambda done: done.value()).wait(),
    "collected": lambda group: lambda: torch.futures.wait_all([_work(group).get_future() for _ in range(2)]),
    "objects": lambda group: lambda: dist.all_gather_object([None] * 2, "x", group=group),
}


def survive(style: str, steps: int = 4) -> str:
    """Run some steps of a style in a group of its own; then rank 1 leaves, and rank 0 says what it is told."""
    group = dist.new_group()
    step = STYLES[style](group)
    for _ in range(steps):
        step()
    if dist.get_rank() == 1:
        dist.destroy_process_group(group)
        return ""
    try:
        for _ in range(2):
            step()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        dist.destroy_process_group(group)
    return "no error"
