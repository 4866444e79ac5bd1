"""What ranks do in the tests of timeouts of process groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

LIMIT_S = 1.5

Step = Callable[[], Any]
Groups = tuple[Any, int]
"""A group, and the rank that will be missing."""


def _tensor() -> torch.Tensor:
    return torch.ones(4)


def _ddp(group: Any) -> Step:
    model = DistributedDataParallel(torch.nn.Linear(4, 1), process_group=group)
    return lambda: model(torch.ones(2, 4)).sum().backward()


def _hook(group: Any) -> Step:
    model = DistributedDataParallel(torch.nn.Linear(4, 1), process_group=group)
    divide: Callable[[Any], Any] = lambda done: done.value()[0] / 2  # noqa: E731
    model.register_comm_hook(
        None,
        lambda _, bucket: dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(divide),  # type: ignore[union-attr]
    )
    return lambda: model(torch.ones(2, 4)).sum().backward()


def _sparse(group: Any) -> Step:
    network = torch.nn.Sequential(torch.nn.Embedding(5, 4, sparse=True), torch.nn.Linear(4, 1))
    model = DistributedDataParallel(network, process_group=group)
    return lambda: model(torch.tensor([1, 3])).sum().backward()


def _built_in(group: Any) -> Step:
    model = DistributedDataParallel(torch.nn.Linear(4, 1), process_group=group)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return lambda: model(torch.ones(2, 4)).sum().backward()


def _fsdp2(group: Any) -> Step:
    model = torch.nn.Linear(4, 2)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    return lambda: model(torch.ones(2, 4)).sum().backward()


def _zero(group: Any) -> Step:
    model = torch.nn.Linear(4, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=group, lr=0.1)

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    return step


def _rows(count: int) -> list[torch.Tensor]:
    return [_tensor() for _ in range(count)]


def _asynchronous(group: Any) -> Any:
    return dist.all_reduce(_tensor(), group=group, async_op=True)


def _several(group: Any) -> None:
    works = [_asynchronous(group) for _ in range(6)]
    for work in works:
        work.wait()


def _coalesced(group: Any) -> None:
    with dist.distributed_c10d._coalescing_manager(group):
        for _ in range(3):
            dist.all_reduce(_tensor(), group=group)


def _batched_p2p(group: Any) -> None:
    peer = 1 - dist.get_rank()
    gives, takes = dist.P2POp(dist.isend, _tensor(), peer, group), dist.P2POp(dist.irecv, _tensor(), peer, group)
    for work in dist.batch_isend_irecv([gives, takes]):
        work.wait()


CALLS: dict[str, Callable[[Any], Step]] = {
    "all_reduce": lambda group: lambda: dist.all_reduce(_tensor(), group=group),
    "wait": lambda group: lambda: _asynchronous(group).wait(),
    "several": lambda group: lambda: _several(group),
    "future": lambda group: lambda: _asynchronous(group).get_future().wait(),
    "then": lambda group: lambda: _asynchronous(group).get_future().then(lambda done: done.value()).wait(),
    "coalesced": lambda group: lambda: _coalesced(group),
    "reduce": lambda group: lambda: dist.reduce(_tensor(), 0, group=group),
    "broadcast": lambda group: lambda: dist.broadcast(_tensor(), 1, group=group),
    "all_gather": lambda group: lambda: dist.all_gather(_rows(2), _tensor(), group=group),
    "all_gather_into_tensor": lambda group: lambda: dist.all_gather_into_tensor(torch.ones(8), _tensor(), group=group),
    "all_gather_coalesced": lambda group: (
        lambda: dist.all_gather_coalesced([_rows(2), _rows(2)], _rows(2), group=group)
    ),
    "sparse": lambda group: lambda: dist.all_reduce(_tensor().to_sparse(), group=group),
    "all_reduce_coalesced": lambda group: lambda: dist.all_reduce_coalesced(_rows(2), group=group),
    "gather": lambda group: lambda: dist.gather(_tensor(), _rows(2) if dist.get_rank() == 0 else None, 0, group=group),
    "scatter": lambda group: (
        lambda: dist.scatter(_tensor(), _rows(2) if dist.get_rank() == 0 else None, 0, group=group)
    ),
    "reduce_scatter": lambda group: lambda: dist.reduce_scatter(_tensor(), _rows(2), group=group),
    "reduce_scatter_tensor": lambda group: lambda: dist.reduce_scatter_tensor(_tensor(), torch.ones(8), group=group),
    "bits": lambda group: lambda: dist.all_reduce(_tensor().int(), dist.ReduceOp.BOR, group=group),
    "all_to_all of a list": lambda group: lambda: dist.all_to_all(_rows(2), _rows(2), group=group),
    "all_to_all": lambda group: lambda: dist.all_to_all_single(_tensor(), _tensor(), group=group),
    "barrier": lambda group: lambda: dist.barrier(group),
    "monitored barrier": lambda group: group.monitored_barrier,
    "gathered objects": lambda group: lambda: dist.all_gather_object([None] * 2, "x", group=group),
    "objects": lambda group: lambda: dist.broadcast_object_list([None], 0, group=group),
    "functional": lambda group: lambda: functional.all_reduce(_tensor(), "sum", group) + 1,
    "batched sends": lambda group: lambda: _batched_p2p(group),
    "ddp": _ddp,
    "ddp with sparse gradients": _sparse,
    "built-in hook": _built_in,
    "fsdp2": _fsdp2,
    "zero": _zero,
    "hook": _hook,
}


def _alone(step: Step, limit_s: float) -> tuple[str, float]:
    begin = time.monotonic()
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin - limit_s
    return "no error", 0.0


def impatient(rank: int, steps: int) -> list[str]:
    """Wait less long than the group would; the operation goes on, and is done when the rank has come.

    Returns:
        What is said to the rank that waits.
    """
    group: Any = dist.new_group(timeout=timedelta(seconds=60))
    calls: list[Callable[[], Any]] = [
        lambda: _asynchronous(group),
        lambda: dist.all_gather(_rows(2), _tensor(), group=group, async_op=True),
        lambda: dist.all_to_all_single(_tensor(), _tensor(), group=group, async_op=True),
        lambda: dist.barrier(group, async_op=True),
    ]
    for _ in range(steps):
        for call in calls:
            call().wait()
    said = []
    late = dist.get_rank() == rank
    for call in calls:
        if late:
            dist.barrier()
        work = call()
        if not late:
            try:
                work.wait(timedelta(seconds=0.05))
            except RuntimeError as error:
                said.append(f"{type(error).__name__}: {error}")
            dist.barrier()
        work.wait()
    dist.destroy_process_group(group)
    return said


def missing(rank: int, steps: int) -> dict[str, tuple[str, float]]:
    """Do everything in a group of its own, all at once, some steps on both ranks and one without the rank.

    Returns:
        What is raised by call, and how long after the timeout.
    """
    groups = {name: dist.new_group(timeout=timedelta(seconds=LIMIT_S)) for name in CALLS}
    calls = {name: CALLS[name](group) for name, group in groups.items()}
    for step in calls.values():
        for _ in range(steps):
            step()
    dist.barrier()
    found: dict[str, tuple[str, float]] = {}

    def run(name: str) -> None:
        found[name] = _alone(calls[name], LIMIT_S)

    if dist.get_rank() != rank:
        threads = [threading.Thread(target=run, args=(name,)) for name in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    dist.barrier()
    for group in groups.values():
        dist.destroy_process_group(group)
    return found
