"""What torch builds above collectives: futures, objects, functional calls, meshes, DDP; what a group can be asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.jobs.cases.gloo_setting import Call, Setting, ranks, sparse


def _objects(at: Setting) -> Any:
    everyone: list[Any] = [None] * at.size
    dist.all_gather_object(everyone, {"rank": at.rank, "text": "é" * (100 * at.rank)}, group=at.group)
    gathered: list[Any] | None = [None] * at.size if at.rank == 1 else None
    dist.gather_object(("g", at.rank), gathered, 1, group=at.group)
    dealt: list[Any] = [None]
    dist.scatter_object_list(dealt, [f"x{i}" for i in ranks(at.size)] if at.rank == 0 else None, 0, group=at.group)
    said = ["a", {"b": 1}, None] if at.rank == 1 else [None] * 3
    dist.broadcast_object_list(said, 1, group=at.group)
    message: list[Any] = ["m", at.rank]
    if at.rank == 0:
        dist.send_object_list(message, 1, group=at.group)
    elif at.rank == 1:
        message = [None, None]
        assert dist.recv_object_list(message, 0, group=at.group) == 0
    return everyone, gathered, dealt, said, message


def _futures(at: Setting) -> Any:
    work = dist.all_reduce(at.numbers(4), at.op, group=at.group, async_op=True)
    assert work is not None
    doubled = work.get_future().then(lambda done: [one + one for one in done.value()])
    value = doubled.wait()
    gather = dist.all_gather(at.blanks(2), at.numbers(2), group=at.group, async_op=True)
    assert gather is not None and gather.wait() and gather.is_completed()
    return value, gather.result() if at.size == 1 else None


def _functional(at: Setting) -> Any:
    return (
        functional.all_reduce(at.numbers(4), "sum", at.group) + 0,
        functional.all_gather_tensor(at.numbers(2, 2), 0, at.group) + 0,
        functional.all_gather_tensor(at.numbers(2, 2), 1, at.group) + 0,
        functional.reduce_scatter_tensor(at.numbers(2 * at.size), "sum", 0, at.group) + 0,
        functional.broadcast(at.numbers(3), 1, at.group) + 0,
        functional.all_to_all_single(at.numbers(2 * at.size), None, None, at.group) + 0,
        [one + 0 for one in functional.all_reduce_coalesced([at.numbers(3), at.numbers(2)], "sum", at.group)],
        [one + 0 for one in functional.all_gather_into_tensor_coalesced([at.numbers(3), at.numbers(2)], at.group)],
        [
            one + 0
            for one in functional.reduce_scatter_tensor_coalesced(
                [at.numbers(at.size), at.numbers(2 * at.size)], "sum", [0, 0], at.group
            )
        ],
    )


def _differentiable(at: Setting) -> Any:
    found = []
    calls: tuple[Callable[[Any], Any], ...] = (
        lambda tensor: differentiable.all_reduce(tensor * (at.rank + 1), group=at.group),
        lambda tensor: torch.cat(differentiable.all_gather(tensor, group=at.group)),
        lambda tensor: differentiable.broadcast(tensor * 2, 1, group=at.group),
        lambda tensor: differentiable.reduce(tensor * 2, 1, group=at.group) * int(at.rank == 1),
        lambda tensor: differentiable.all_to_all_single(torch.empty_like(tensor), tensor, group=at.group),
        lambda tensor: differentiable.reduce_scatter(tensor[:2] * 1, list(tensor.split(2)), group=at.group),
    )
    for call in calls:
        tensor = at.numbers(2 * at.size).requires_grad_()
        value = call(tensor)
        (value.square().sum() * (at.rank + 1)).backward()
        found.append((value.detach(), tensor.grad))
    return found


def _sparse_future(at: Setting) -> Any:
    work = dist.all_reduce(sparse(at), at.op, group=at.group, async_op=True)
    assert work is not None
    work.wait()
    return work.get_future().wait()[0].to_dense(), work.result()[0].to_dense()


def _sparse_empty(at: Setting) -> Any:
    """Reduce what only the last rank has, and a scalar's worth of dense dimensions."""
    rows = 2 if at.rank == at.size - 1 else 0
    tensor = torch.sparse_coo_tensor(torch.arange(rows)[None], at.numbers(rows), (5,))
    dist.all_reduce(tensor, at.op, group=at.group)
    return tensor.to_dense()


def _sparse_places(at: Setting) -> Any:
    """Reduce elements of a matrix: two sparse dimensions."""
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, at.rank], [1, 0]]), at.numbers(2), (at.size, 2))
    dist.all_reduce(tensor, at.op, group=at.group)
    return tensor.to_dense()


def _barrier(at: Setting) -> Any:
    dist.barrier(at.group)
    work = dist.barrier(at.group, async_op=True)
    assert work is not None
    return work.wait()


def _about(at: Setting) -> Any:
    """Ask what can be known of a group."""
    group, c10d = at.group, dist.distributed_c10d
    first = group._get_sequence_number_for_group()
    dist.all_reduce(at.numbers(2), group=group)
    return (
        group._get_sequence_number_for_group() - first,
        [dist.get_rank(group), dist.get_world_size(group), group.rank(), group.size()],
        dist.get_process_group_ranks(group),
        [dist.get_group_rank(group, 1), dist.get_global_rank(group, 1)],
        [group._has_hooks(), group.bound_device_id],
        group.group_name in c10d._world.pg_names.values(),
        isinstance(group.group_desc, str),
        str(c10d._get_pg_default_device(group)),
    )


def _store(at: Setting) -> Any:
    """Meet through the group's store."""
    store = at.group.get_group_store()
    store.set(f"given {at.rank}", str(at.rank))
    return store.get(f"given {at.following}")


def _times(at: Setting) -> Any:
    """Give a group another time to wait, in all ways that torch has."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=50), at.group)
    at.group.set_timeout(timedelta(seconds=60))
    tensor = at.numbers(3)
    dist.all_reduce(tensor, group=at.group)
    return tensor


def _works(at: Setting) -> Any:
    """Ask what can be known of a work that is done."""
    found = []
    tensors = [at.numbers(3) for _ in ranks(4)]
    for work in (
        dist.all_reduce(tensors[0], group=at.group, async_op=True),
        dist.broadcast(tensors[1], 0, group=at.group, async_op=True),
        dist.all_gather(at.blanks(3), tensors[2], group=at.group, async_op=True),
        dist.barrier(at.group, async_op=True),
    ):
        assert work is not None
        waited = work.wait()
        found.append((waited, work.is_completed(), work.is_success(), work.exception(), work.synchronize()))
        value = work.get_future().wait()
        found.append((work.get_future().done(), value[0] if value else None))
        found.append(work.result()[:1])
    return found


def _names(at: Setting) -> Any:
    """Make groups of some ranks, and meshes; reduce in them."""
    backend = dist.get_backend(at.group)
    alone, many = dist.new_subgroups(1, backend=backend)
    some, _ = dist.new_subgroups_by_enumeration([[0, 1], *([r] for r in ranks(2, at.size))], backend=backend)
    found = []
    for group in (alone, some):
        tensor = at.numbers(3)
        dist.all_reduce(tensor, group=group)
        found.append((tensor, dist.get_process_group_ranks(group), len(many)))
        dist.destroy_process_group(group)
    return found


def _devices(at: Setting) -> Any:
    """Distribute a tensor over a mesh of the group."""
    mesh = DeviceMesh.from_group(at.group, "cpu")
    whole = torch.arange(14.0).view(7, 2)
    parted = distribute_tensor(whole, mesh, [Shard(0)])
    return parted.full_tensor(), parted.redistribute(mesh, [Shard(1)]).to_local(), (parted @ whole.t()).full_tensor()


class _Rows(nn.Module):
    """A model with sparse and dense gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.rows = nn.Embedding(10, 4, sparse=True)
        self.last = nn.Linear(4, 1)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.rows(numbers).sum(1))
        return found


def _trained(at: Setting, hook: Any = None, model: nn.Module | None = None, **options: Any) -> Any:
    """Return the weights after some steps of DDP in the group."""
    torch.manual_seed(5)
    model = model or nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 4), nn.Linear(4, 1))
    wrapped = DistributedDataParallel(model, process_group=at.group, bucket_cap_mb=1e-4, **options)
    if hook is not None:
        wrapped._register_builtin_comm_hook(hook)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for step in ranks(4):
        optimizer.zero_grad()
        wrapped(torch.tensor([[step, at.rank + 3], [9, step + 2 * at.rank]])).square().mean().backward()
        optimizer.step()
    return [one.detach() for one in wrapped.parameters()]


def _built_in(at: Setting) -> Any:
    kinds: list[dict[str, Any]] = [{}, {"find_unused_parameters": True}, {"static_graph": True}]
    hooks = dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS
    return [_trained(at, hook, **options) for hook in hooks for options in kinds]


def _sparse_trained(at: Setting) -> Any:
    kinds: list[dict[str, Any]] = [{}, {"find_unused_parameters": True}, {"static_graph": True}]
    kinds.append({"gradient_as_bucket_view": True})
    return [_trained(at, model=_Rows(), **options) for options in kinds]


LAYERS: dict[str, Call] = {
    "objects": _objects,
    "futures": _futures,
    "functional": _functional,
    "differentiable": _differentiable,
    "sparse future": _sparse_future,
    "sparse and empty": _sparse_empty,
    "sparse places": _sparse_places,
    "barrier": _barrier,
    "about": _about,
    "store": _store,
    "times": _times,
    "works": _works,
    "names": _names,
    "devices": _devices,
    "built-in hooks": _built_in,
    "sparse gradients": _sparse_trained,
}
