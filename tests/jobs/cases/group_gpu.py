"""What ranks that share a real GPU do with ringtune as a backend of torch.distributed. Sums are exact."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ringtune.torch as hvd
import ringtune.torch.distributed as ringtune_distributed
from tests.jobs.cases.group import open_group
from tests.jobs.cases.training import joined_losses, make_network


def tensor_of(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers: bfloat16 holds their sums exactly, in any order of additions."""
    return (torch.arange(count, device="cuda") % 50 + 10 * rank).to(dtype)


def mine(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return tensor_of(dist.get_rank(), count, dtype)


def every(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The tensors of all ranks, one a row."""
    return torch.stack([tensor_of(rank, count, dtype) for rank in range(dist.get_world_size())])


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.is_cuda and torch.equal(found, wanted), f"{found} is not {wanted}"


def collectives(store: str) -> list[str]:
    """Every collective of the backend; returns the devices that the world serves."""
    rank, size = open_group("ringtune", store)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = mine(1001, dtype)
        dist.all_reduce(tensor)
        same(tensor, every(1001, dtype).sum(0, dtype=dtype))
    strided = mine(12)[::2]
    dist.all_reduce(strided, dist.ReduceOp.MAX)
    same(strided, every(12).amax(0)[::2])
    tensor = mine(5)
    dist.broadcast(tensor, 1)
    same(tensor, every(5)[1])
    joined = torch.zeros(4 * size, device="cuda")
    dist.all_gather_into_tensor(joined, mine(4))
    same(joined, every(4).view(-1))
    outputs = [torch.zeros(4, device="cuda") for _ in range(size)]
    dist.all_gather(outputs, mine(4))
    same(torch.stack(outputs), every(4))
    own = torch.zeros(3, device="cuda")
    dist.reduce_scatter_tensor(own, mine(3 * size))
    same(own, every(3 * size).sum(0)[3 * rank : 3 * rank + 3])
    received = torch.zeros(2 * size, device="cuda")
    dist.all_to_all_single(received, mine(2 * size))
    same(received, every(2 * size)[:, 2 * rank : 2 * rank + 2].reshape(-1))
    cut = [torch.full((2,), 7.0 * part, device="cuda") for part in range(size)] if rank == 0 else None
    part = torch.zeros(2, device="cuda")
    dist.scatter(part, cut, src=0)
    same(part, torch.full((2,), 7.0 * rank, device="cuda"))
    came = torch.zeros(4, device="cuda")
    sent = dist.isend(mine(4), (rank + 1) % size)
    dist.recv(came, (rank - 1) % size)
    assert sent is not None
    sent.wait()
    same(came, every(4)[(rank - 1) % size])
    dist.barrier()
    world: Any = dist.group.WORLD
    return [device.type for device in world._device_types]


def works(store: str) -> tuple[float, float]:
    """Works and futures against streams; returns how long starting one took behind a long kernel, and that kernel."""
    open_group("cpu:ringtune,cuda:ringtune", store)
    size = dist.get_world_size()
    dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(int(1e9))
    tensor = torch.ones(1000, device="cuda")
    work: Any = dist.all_reduce(tensor, async_op=True)
    started = time.perf_counter() - begin
    assert not work.is_completed()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        work.wait()
        doubled = tensor * 2
    other.synchronize()
    took = time.perf_counter() - begin
    assert doubled.eq(2 * size).all() and work.is_completed()
    for step in range(20):
        tensor = torch.full((100_003,), float(step), device="cuda")
        future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] + 1)  # type: ignore[union-attr]
        del tensor
        torch.full((100_003,), -1.0, device="cuda")  # whatever the allocator gives out now
        same(future.wait(), torch.full((100_003,), step * size + 1.0, device="cuda"))
    return started, took


def hooked(store: str, steps: int) -> list[float]:
    """Train under DDP on Gloo with ringtune's hook reducing its buckets on the GPU."""
    open_group("gloo", store)
    hvd.init()
    model: Any = DistributedDataParallel(make_network().cuda(), bucket_cap_mb=0.004)
    model.register_comm_hook(None, ringtune_distributed.ddp_hook)
    return joined_losses(model, torch.optim.SGD(model.parameters(), lr=0.05), steps)


def batch_norm() -> float:
    """Normalise over all ranks on the GPU and on the CPU; return the largest difference, gradients too."""
    generator = torch.Generator().manual_seed(hvd.rank())
    given = torch.randn(6, 3, 5, generator=generator, dtype=torch.float64)
    found = []
    for device in ("cpu", "cuda"):
        layer = hvd.SyncBatchNorm(3).double().to(device)
        data = given.clone().to(device).requires_grad_()
        layer(data).square().sum().backward()
        assert data.grad is not None and layer.running_mean is not None
        found.append([data.grad.cpu(), layer.running_mean.cpu(), layer.weight.grad.cpu()])
    return max((a - b).abs().max().item() for a, b in zip(*found, strict=True))
