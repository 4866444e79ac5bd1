"""What ranks do to compare every function of torch.distributed with a group of Gloo's over the same ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

ranks = range
_groups: list[Any] = []

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"),
)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


class Setting:
    """What a call is made with.

    Args:
        group: Whose ranks call.
        dtype: Of the tensors.
        op: Name of the reduction.
    """

    def __init__(self, group: Any, dtype: str = "float32", op: str = "SUM") -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.op: Any = getattr(dist.ReduceOp, op)

    def numbers(self, *shape: int, more: int = 0) -> torch.Tensor:
        """Return numbers that differ by rank and by place."""
        count = int(torch.Size(shape).numel())
        found = (torch.arange(count) * 3 + self.rank + more) % 7 + (0 if self.dtype == torch.bool else 1)
        if self.dtype.is_complex:
            return torch.complex(found.double(), -found.double() - 1).to(self.dtype).view(shape)
        return found.to(self.dtype).view(shape)

    def blank(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self.dtype)

    def blanks(self, *shape: int) -> list[torch.Tensor]:
        return [self.blank(*shape) for _ in ranks(self.size)]

    @property
    def following(self) -> int:
        return (self.rank + 1) % self.size

    @property
    def preceding(self) -> int:
        return (self.rank - 1) % self.size


Call = Callable[[Setting], Any]


def _all_reduce(at: Setting) -> Any:
    tensor = at.numbers(2, 3)
    dist.all_reduce(tensor, at.op, group=at.group)
    return tensor


def _all_reduce_coalesced(at: Setting) -> Any:
    tensors = [at.numbers(4), at.numbers(2, 3)]
    dist.all_reduce_coalesced(tensors, at.op, group=at.group)
    return tensors


def _coalescing(at: Setting) -> Any:
    tensors = [at.numbers(count) for count in (3, 5, 7)]
    with _coalescing_manager(at.group):
        for tensor in tensors:
            dist.all_reduce(tensor, at.op, group=at.group)
    return tensors


def _coalescing_later(at: Setting) -> Any:
    tensors = [at.numbers(count) for count in (3, 5, 7)]
    with _coalescing_manager(at.group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, at.op, group=at.group)
    manager.wait()
    return tensors


def _coalesced_parts(at: Setting) -> Any:
    wholes = [at.blank(2 * at.size), at.blank(3 * at.size)]
    with _coalescing_manager(at.group):
        for whole in wholes:
            dist.all_gather_into_tensor(whole, at.numbers(whole.numel() // at.size), group=at.group)
    return wholes


def _reduce(at: Setting) -> Any:
    found = []
    for root in ranks(at.size):
        tensor = at.numbers(5)
        dist.reduce(tensor, root, at.op, group=at.group)
        found.append(tensor if at.rank == root else None)  # Gloo leaves anything with the others
    return found


def _reduce_scatter(at: Setting) -> Any:
    out = at.blank(2, 2)
    dist.reduce_scatter(out, [at.numbers(2, 2, more=i) for i in ranks(at.size)], at.op, group=at.group)
    return out


def _reduce_scatter_tensor(at: Setting) -> Any:
    out = at.blank(3)
    dist.reduce_scatter_tensor(out, at.numbers(3 * at.size), at.op, group=at.group)
    return out


def _broadcast(at: Setting) -> Any:
    tensor = at.numbers(6)
    dist.broadcast(tensor, at.size - 1, group=at.group)
    return tensor


def _all_gather(at: Setting) -> Any:
    places = at.blanks(2, 2)
    dist.all_gather(places, at.numbers(2, 2), group=at.group)
    return places


def _all_gather_uneven(at: Setting) -> Any:
    places = [at.blank(rank + 1) for rank in ranks(at.size)]
    dist.all_gather(places, at.numbers(at.rank + 1), group=at.group)
    return places


def _all_gather_coalesced(at: Setting) -> Any:
    places = [[at.blank(3), at.blank(2, 2)] for _ in ranks(at.size)]
    dist.all_gather_coalesced(places, [at.numbers(3), at.numbers(2, 2)], group=at.group)
    return places


def _all_gather_into(at: Setting, *shape: int) -> Any:
    whole = at.blank(*shape)
    dist.all_gather_into_tensor(whole, at.numbers(2, 3), group=at.group)
    return whole


def _gather(at: Setting) -> Any:
    found = []
    for root in ranks(at.size):
        places = at.blanks(4) if at.rank == root else None
        dist.gather(at.numbers(4), places, root, group=at.group)
        found.append(places)
    return found


def _scatter(at: Setting) -> Any:
    found = []
    for root in ranks(at.size):
        out = at.blank(4)
        given = [at.numbers(4, more=i) for i in ranks(at.size)] if at.rank == root else None
        dist.scatter(out, given, root, group=at.group)
        found.append(out)
    return found


def _all_to_all(at: Setting) -> Any:
    places = [at.blank(at.rank + 1) for _ in ranks(at.size)]
    dist.all_to_all(places, [at.numbers(i + 1) for i in ranks(at.size)], group=at.group)
    return places


def _all_to_all_single(at: Setting) -> Any:
    out = at.blank(2 * at.size, 2)
    dist.all_to_all_single(out, at.numbers(2 * at.size, 2), group=at.group)
    return out


def _all_to_all_splits(at: Setting) -> Any:
    gives, takes = [i for i in ranks(at.size)], [at.rank] * at.size
    out = at.blank(sum(takes), 2)
    dist.all_to_all_single(out, at.numbers(sum(gives), 2), takes, gives, group=at.group)
    return out


def _passed(at: Setting) -> Any:
    places = at.blanks(3)
    sends = [dist.isend(at.numbers(3, more=tag), at.following, at.group, tag) for tag in ranks(at.size)]
    receives = [dist.irecv(places[tag], at.preceding, at.group, tag) for tag in reversed(ranks(at.size))]
    for work in (*receives, *sends):
        assert work is not None and work.wait()
    return places


def _by_group_rank(at: Setting) -> Any:
    place = at.blank(3)
    if at.rank == 0:
        dist.send(at.numbers(3), group=at.group, group_dst=1)
    elif at.rank == 1:
        assert dist.recv(place, group=at.group, group_src=0) == 0
    return place


def _batch(at: Setting) -> Any:
    place, other = at.blank(3), at.blank(2)
    given = [
        dist.P2POp(dist.isend, at.numbers(3), at.following, at.group),
        dist.P2POp(dist.isend, at.numbers(2), at.following, at.group, 5),
        dist.P2POp(dist.irecv, other, at.preceding, at.group, 5),
        dist.P2POp(dist.irecv, place, at.preceding, at.group),
    ]
    for work in dist.batch_isend_irecv(given):
        work.wait()
    return place, other


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


def _sparse(at: Setting) -> torch.Tensor:
    """Return rows that only some ranks have, one of them twice."""
    index = torch.tensor([[at.rank, at.rank, at.size]])
    return torch.sparse_coo_tensor(index, at.numbers(3, 2), (at.size + 2, 2))


def _sparse_all_reduce(at: Setting) -> Any:
    tensor = _sparse(at)
    dist.all_reduce(tensor, at.op, group=at.group)
    return tensor.to_dense(), tensor.is_coalesced()


def _sparse_future(at: Setting) -> Any:
    work = dist.all_reduce(_sparse(at), at.op, group=at.group, async_op=True)
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
    return _all_reduce(at)


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


REDUCTIONS: dict[str, Call] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "coalescing": _coalescing,
    "coalescing later": _coalescing_later,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "sparse": _sparse_all_reduce,
}
MOVES: dict[str, Call] = {
    "coalesced parts": _coalesced_parts,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather uneven": _all_gather_uneven,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_into_tensor": lambda at: _all_gather_into(at, 2 * at.size, 3),
    "all_gather_into_tensor stacked": lambda at: _all_gather_into(at, at.size, 2, 3),
    "all_gather_into_tensor flat": lambda at: _all_gather_into(at, at.size * 6),
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "all_to_all_single with splits": _all_to_all_splits,
    "isend": _passed,
    "send by rank in the group": _by_group_rank,
    "batch_isend_irecv": _batch,
}
OTHERS: dict[str, Call] = {
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


def _same(ours: Any, theirs: Any) -> bool:
    """Return whether two results are the same, but for the order in which float16 numbers are added."""
    if isinstance(theirs, torch.Tensor):
        wide = torch.complex128 if theirs.is_complex() else torch.float64
        alike = isinstance(ours, torch.Tensor) and (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        return alike and torch.allclose(ours.to(wide), theirs.to(wide), rtol=1e-3, atol=1e-3, equal_nan=True)
    if isinstance(theirs, list | tuple):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs)


def _outcome(call: Call, at: Setting) -> Any:
    try:
        return call(at)
    except Exception as error:
        return error


def differences(calls: str, dtypes: Sequence[str], ops: Sequence[str]) -> list[str]:
    """Make calls in a group of ringtune's and one of Gloo's; return what Gloo does and ringtune does otherwise."""
    warnings.simplefilter("ignore")
    if not _groups:
        _groups.extend([dist.new_group(), dist.new_group(backend="gloo")])
    wrong = []
    for name, call in globals()[calls].items():
        for dtype in dtypes:
            for op in ops:
                ours, theirs = (_outcome(call, Setting(group, dtype, op)) for group in _groups)
                if not isinstance(theirs, Exception) and not _same(ours, theirs):
                    wrong.append(f"{name} {dtype} {op}: {ours} beside Gloo's {theirs}")
    return wrong
