"""What ranks do in the tests of ringtune as a backend of torch.distributed."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ringtune.torch as hvd
import ringtune.torch.distributed as ringtune_distributed
from ringtune import session
from tests.jobs.cases.training import joined_losses, make_network

ranks = range

# Groups of Gloo's, until the process ends: their destructor waits with the GIL held for a thread that may want the GIL
# to let go of the last collective (torch 2.13).
_kept: list[Any] = []


def open_group(backend: str, store: str) -> tuple[int, int]:
    """Join the world through a file, as rank and size of the environment say."""
    rank, size = int(os.environ["TEST_RANK"]), int(os.environ["TEST_SIZE"])
    dist.init_process_group(
        backend, store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    if backend == "gloo":
        keep_world()
    return dist.get_rank(), dist.get_world_size()


def keep_world() -> None:
    """Let the group of all ranks live as long as this process."""
    _kept.append(dist.group.WORLD)


def close_group() -> bool:
    dist.destroy_process_group()
    return session.is_initialized()


def mine(count: int, dtype: str = "float32") -> torch.Tensor:
    return (torch.arange(count) + 10 * dist.get_rank()).to(getattr(torch, dtype))


def all_reduce(dtype: str, op: str, count: int, strided: bool) -> list[Any]:
    tensor = mine(2 * count, dtype)[::2] if strided else mine(count, dtype)
    dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
    return tensor.tolist()


def asynchronous() -> list[Any]:
    tensors = [mine(5) + index for index in range(10)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    future = works[3].get_future().wait()
    for work in reversed(works):
        assert work.wait() and work.is_completed()
    assert future[0] is tensors[3] or torch.equal(future[0], tensors[3])
    return [tensor.tolist() for tensor in tensors]


def waited(asynchronously: bool) -> tuple[list[float], bool]:
    """Reduce with torch's options for calls that block or go on; whether the group has waited."""
    opts = dist.AllreduceOptions()
    opts.asyncOp = asynchronously
    tensor = torch.ones(3)
    work = dist.distributed_c10d._get_default_group().allreduce([tensor], opts)
    done: bool = work._done
    work.wait()
    return tensor.tolist(), done


def rooted(root: int) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    broadcast = mine(3)
    dist.broadcast(broadcast, src=root)
    reduced = mine(3)
    dist.reduce(reduced, dst=root)
    gathered = [torch.zeros(2) for _ in range(size)] if rank == root else None
    dist.gather(mine(2), gathered, dst=root)
    scattered = torch.zeros(2)
    dist.scatter(scattered, [torch.full((2,), float(i)) for i in range(size)] if rank == root else None, src=root)
    return {
        "broadcast": broadcast.tolist(),
        "reduce": reduced.tolist(),
        "gather": None if gathered is None else [one.tolist() for one in gathered],
        "scatter": scattered.tolist(),
    }


def everyone() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    listed = [torch.zeros(2, 2) for _ in range(size)]
    dist.all_gather(listed, mine(4).view(2, 2))
    single = torch.zeros(2 * size)
    dist.all_gather_into_tensor(single, mine(2))
    scattered = torch.zeros(2)
    dist.reduce_scatter(scattered, [torch.full((2,), float(i + rank)) for i in range(size)])
    part = torch.zeros(2, 3)
    dist.reduce_scatter_tensor(part, torch.arange(6.0 * size).view(2 * size, 3))
    exchanged = [torch.zeros(i + 1) for i in range(size)]
    dist.all_to_all(exchanged, [torch.full((rank + 1,), float(10 * rank + i)) for i in range(size)])
    rows = torch.zeros(sum(i for i in range(size)) if size > 1 else 0, 2)
    splits_in, splits_out = [rank] * size, list(range(size))
    dist.all_to_all_single(rows, torch.full((rank * size, 2), float(rank)), splits_out, splits_in)
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    dist.barrier()
    return {
        "all_gather": [one.tolist() for one in listed],
        "all_gather_single": single.tolist(),
        "reduce_scatter": scattered.tolist(),
        "reduce_scatter_single": part.tolist(),
        "all_to_all": [one.tolist() for one in exchanged],
        "all_to_all_single": rows.tolist(),
        "objects": objects,
    }


def complex_sum() -> list[Any]:
    tensor = torch.complex(mine(3), -mine(3))
    dist.all_reduce(tensor)
    return torch.view_as_real(tensor).tolist()


def passed_around(tag_first: int) -> list[float]:
    """Everyone sends to the next rank twice, with tags that arrive in another order than they are asked for."""
    rank, size = dist.get_rank(), dist.get_world_size()
    first, second = torch.zeros(2), torch.zeros(2)
    sends = [dist.isend(mine(2) + tag, (rank + 1) % size, tag=tag) for tag in (1, 2)]
    receives = {
        tag: dist.irecv({1: first, 2: second}[tag], (rank - 1) % size, tag=tag) for tag in (tag_first, 3 - tag_first)
    }
    receives[tag_first].wait()
    receives[3 - tag_first].wait()
    for send in sends:
        send.wait()
    return [*first.tolist(), *second.tolist()]


def ping_pong(count: int) -> float:
    tensor = torch.zeros(1)
    rank = dist.get_rank()
    for _ in range(count):
        if rank == 0:
            dist.send(tensor + 1, 1)
            dist.recv(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)
            dist.send(tensor + 1, 0)
    return tensor.item()


def guarded(late: bool) -> str:
    """Come to a monitored barrier; with `late` rank 0 waits in vain and the others come when it has given up."""
    if not late:
        ringtune_distributed.monitored_barrier()
        return "all came"
    store: Any = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        try:
            ringtune_distributed.monitored_barrier(timeout=timedelta(seconds=0.2))
            return "all came"
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            store.set("given up", "yes")
    store.wait(["given up"])
    ringtune_distributed.monitored_barrier()
    return "late"


def sub_groups() -> list[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    even = dist.new_group([r for r in range(size) if r % 2 == 0])
    odd = dist.new_group([r for r in range(size) if r % 2 == 1])
    group = odd if rank % 2 else even
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=group)
    dist.all_reduce(both := torch.ones(1))
    return [tensor[0].item(), both.item(), float(dist.get_rank(group)), float(dist.get_world_size(group))]


def wrong(what: str) -> str:
    rank = dist.get_rank()
    try:
        if what == "op":
            dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0))  # type: ignore[attr-defined]
        elif what == "bits":
            dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR)
        elif what == "shape":
            dist.all_reduce(torch.ones(2 + rank))
            # The names differ by size, so nobody can match: the timeout of the group speaks.
        elif what == "self":
            dist.send(torch.ones(1), rank)
        elif what == "splits":
            dist.all_to_all_single(torch.zeros(2), torch.zeros(2), [5, 5], [1, 1])
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def train(kind: str, backend: str, store: str, steps: int, device: str = "cpu") -> list[float]:
    """Train on this rank's half of each batch and return the joined losses."""
    _, size = open_group(backend, store)
    model: Any = make_network().to(device)
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device, (size,))
        for layer in list(model):
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind != "hvd":
        model = DistributedDataParallel(model, bucket_cap_mb=0.004)
        if kind == "hook":
            hvd.init()
            model.register_comm_hook(None, ringtune_distributed.ddp_hook)
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if kind == "hvd":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    losses = joined_losses(model, optimizer, steps)
    close_group()
    return losses


def init_again(store: str, times: int) -> list[tuple[int, int, float]]:
    """Join and leave ringtune's job beside Gloo's world; return rank, size and a sum over the ranks of each time."""
    open_group("gloo", store)
    found = []
    for _ in ranks(times):
        hvd.init()
        total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="total")
        found.append((hvd.rank(), hvd.size(), total.item()))
        hvd.shutdown()
    return found


def profiled(steps: int) -> dict[str, list[Any]]:
    """Return the shapes of every operation of the group that PyTorch's profiler saw, and what never ended."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8, bias=False) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1e-4)
    for _ in ranks(2):  # the second pass begins with new buckets, which DDP's ranks agree on by broadcasts
        model(torch.ones(2, 8)).sum().backward()
    one, parts = torch.ones(6), [torch.empty(6) for _ in ranks(dist.get_world_size())]
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in ranks(steps):
            model(torch.ones(2, 8)).sum().backward()
        dist.all_reduce(one)
        dist.all_reduce(one, async_op=True).wait()
        dist.broadcast(one, 0)
        dist.all_gather(parts, one)
        dist.barrier()
        if dist.get_rank() == 0:
            dist.send(one, 1)
        elif dist.get_rank() == 1:
            dist.recv(one, 0)
    found: dict[str, list[Any]] = {}
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        for event in json.loads(Path(file.name).read_bytes())["traceEvents"]:
            if str(event.get("name", "")).startswith("ringtune:"):
                ended = event["args"].get("finished", True)
                found.setdefault(event["name"], []).append(event["args"].get("Input Dims") if ended else "open")
    return found
