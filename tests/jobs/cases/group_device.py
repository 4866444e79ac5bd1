"""What ranks do with ringtune as a backend of torch.distributed, on tensors of the stand-in's GPU. Sums are exact."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ringtune.torch.distributed import ddp_hook, streams
from ringtune.torch.distributed.works import Work
from tests.fake_torch import OnGpu, Stream, cuda, to_cpu, to_gpu
from tests.jobs.cases.group import open_group

SECONDS = 60.0


def open_on_gpus(store: str, backend: str) -> list[str]:
    """Join the world with the stand-in's GPU; return the devices that the group serves."""
    cuda.install()
    # A future of a torch without CUDA knows no GPU.
    streams.future_devices = lambda gpu: None
    open_group(backend, store)
    world: Any = dist.group.WORLD
    return [device.type for device in world._device_types]


def mine(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return to_gpu((torch.arange(count) + 10 * dist.get_rank()).to(dtype))


def theirs(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [(torch.arange(count) + 10 * rank).to(dtype) for rank in range(dist.get_world_size())]


def same(tensor: torch.Tensor, wanted: torch.Tensor) -> None:
    assert isinstance(tensor, OnGpu) and cuda.holds(tensor.as_subclass(torch.Tensor))
    found = to_cpu(tensor)
    assert torch.equal(found, wanted), f"{found} is not {wanted}"


def reductions() -> None:
    """All reductions of several dtypes, contiguous or not, in place and in parts."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        parts = torch.stack(theirs(6, dtype))
        for op, wanted in (("SUM", parts.sum(0, dtype=dtype)), ("MAX", parts.amax(0)), ("MIN", parts.amin(0))):
            tensor = mine(6, dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            same(tensor, wanted)
    strided = mine(12)[::2]
    dist.all_reduce(strided)
    same(strided, torch.stack(theirs(12)).sum(0)[::2])
    turned = to_gpu(torch.tensor([1 + rank + 1j]))
    dist.all_reduce(turned)
    same(turned, torch.tensor([sum(range(1, size + 1)) + size * 1j]))
    tensor = mine(4)
    dist.reduce(tensor, 1)
    same(tensor, torch.stack(theirs(4)).sum(0) if rank == 1 else theirs(4)[rank])
    own = to_gpu(torch.zeros(3))
    dist.reduce_scatter_tensor(own, mine(3 * size))
    same(own, torch.stack(theirs(3 * size)).sum(0)[3 * rank : 3 * rank + 3])
    whole = mine(3 * size)
    dist.reduce_scatter_tensor(whole[3 * rank : 3 * rank + 3], whole)  # an output within its input
    same(whole[3 * rank : 3 * rank + 3], torch.stack(theirs(3 * size)).sum(0)[3 * rank : 3 * rank + 3])
    uneven = [to_gpu(torch.full((1 + part,), 1.0 + rank)) for part in range(size)]
    own = to_gpu(torch.zeros(1 + rank))
    dist.reduce_scatter(own, uneven)
    same(own, torch.full((1 + rank,), float(sum(range(1, size + 1)))))


def moves() -> None:
    """Broadcast, gathering and scattering of all kinds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = mine(5)
    dist.broadcast(tensor, 1)
    same(tensor, theirs(5)[1])
    outputs = [to_gpu(torch.zeros(4)) for _ in range(size)]
    dist.all_gather(outputs, mine(4))
    for output, wanted in zip(outputs, theirs(4), strict=True):
        same(output, wanted)
    joined = to_gpu(torch.zeros(4 * size, dtype=torch.int32))
    dist.all_gather_into_tensor(joined, mine(4, torch.int32))
    same(joined, torch.cat(theirs(4, torch.int32)))
    outputs = [to_gpu(torch.zeros(3)) for _ in range(size)] if rank == 1 else []
    dist.gather(mine(3), outputs or None, dst=1)
    for output, wanted in zip(outputs, theirs(3) if outputs else [], strict=True):
        same(output, wanted)
    cut = [to_gpu(torch.full((2,), 7.0 * part)) for part in range(size)] if rank == 0 else None
    own = to_gpu(torch.zeros(2))
    dist.scatter(own, cut, src=0)
    same(own, torch.full((2,), 7.0 * rank))
    received = to_gpu(torch.zeros(2 * size))
    dist.all_to_all_single(received, mine(2 * size))
    same(received, torch.cat([one[2 * rank : 2 * rank + 2] for one in theirs(2 * size)]))
    parts = [to_gpu(torch.zeros(1 + rank)) for _ in range(size)]
    dist.all_to_all(parts, [to_gpu(torch.full((1 + part,), float(rank))) for part in range(size)])
    for sender, part in enumerate(parts):
        same(part, torch.full((1 + rank,), float(sender)))
    dist.barrier()


def streams_of_the_program() -> None:
    """A work waits for the kernels before it; whoever calls `wait` goes on behind it, on his own stream."""
    rank, size = dist.get_rank(), dist.get_world_size()
    here, other = cuda.current_stream(), Stream()
    for step in range(5):
        tensor = to_gpu(torch.full((1000,), -1.0))
        here.fill(tensor, step + rank)  # not done before somebody waits for it
        work: Any = dist.all_reduce(tensor, async_op=True)
        work.settle()
        before = to_cpu(tensor)
        assert torch.equal(before, torch.full((1000,), float(step + rank))), "nothing here waits for the result yet"
        assert not work.is_completed(), "it is on its way, and nobody has waited for it"
        with cuda.stream(other):
            work.wait()
            same(tensor, torch.full((1000,), float(size * step + sum(range(size)))))
        assert work.is_completed()
        work.wait()
        same(tensor, torch.full((1000,), float(size * step + sum(range(size)))))
        assert (tensor.data_ptr(), streams._streams[tensor.device].cuda_stream) in cuda.recorded


def futures() -> None:
    """Futures are completed by themselves and their callbacks run."""
    tensors = [mine(5) for _ in range(6)]
    works: list[Any] = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    seen: list[int] = []
    last = works[5].get_future().then(lambda done: seen.append(len(done.value())))
    for index in (3, 0):
        assert works[index].get_future().wait()[0] is tensors[index]
    last.wait()
    assert seen == [1]
    deadline = time.monotonic() + SECONDS
    for work in works:
        work.wait()
    for work, tensor in zip(works, tensors, strict=True):
        same(tensor, torch.stack(theirs(5)).sum(0))
        assert work.is_completed() and work.is_success() and time.monotonic() < deadline
    bucket: Any = SimpleNamespace(buffer=lambda: tensors[0], index=lambda: 0)
    reduced = ddp_hook(None, bucket).wait()
    with cuda.stream(streams._streams[tensors[0].device]):
        same(reduced, torch.stack(theirs(5)).sum(0))


def points() -> None:
    """Send and receive, in both directions and of a receiver that is not contiguous."""
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    came = to_gpu(torch.zeros(8))[::2]
    sent = dist.isend(mine(4), after, tag=3)
    dist.recv(came, before, tag=3)
    assert sent is not None
    sent.wait()
    same(came, theirs(4)[before])


def subgroup() -> None:
    """A further group has a runtime of its own, also on the GPU."""
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        tensor = mine(3)
        dist.all_reduce(tensor, group=group)
        same(tensor, theirs(3)[0] + theirs(3)[1])
        host = torch.ones(2)
        dist.all_reduce(host, group=group)
        assert host.tolist() == [2.0, 2.0]


def failing() -> list[str]:
    """A work that fails says so to whoever waits, and the group goes on."""
    rank, said = dist.get_rank(), []
    tensor = mine(3) if rank == 0 else torch.ones(3)  # one rank has it on the GPU
    for kind in ("wait", "future"):
        work: Any = dist.all_reduce(tensor, async_op=True)
        assert isinstance(work, Work)
        try:
            work.wait() if kind == "wait" else work.get_future().wait()
        except RuntimeError as error:
            said.append(str(error))
        assert work.is_completed() and not work.is_success()
    tensor = mine(3)
    dist.all_reduce(tensor)
    same(tensor, torch.stack(theirs(3)).sum(0))
    return said
