"""What ranks do with tensors on a real GPU that they share. Exact where it can be, else against float64 on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import ringtune.numpy as np_hvd
import ringtune.torch as hvd
from ringtune.errors import InvalidArgument, Mismatch
from tests.jobs.cases import common


def every_reduction(dtype: str, op: str, count: int) -> float:
    """Reduce random numbers in place and out of place; return the largest error against float64 on the CPU."""
    kind, size = getattr(torch, dtype), hvd.size()
    floats = kind.is_floating_point
    parts = []
    for rank in range(size):
        generator = torch.Generator().manual_seed(rank)
        low = torch.randint(1, 4, (count,), generator=generator)
        parts.append((low + torch.rand(count, generator=generator) if floats else low).to(kind))
    exact = torch.stack([part.double() for part in parts])
    wanted = {
        "Sum": lambda: exact.sum(0),
        "Average": lambda: exact.sum(0) / size,
        "Min": lambda: exact.min(0).values,
        "Max": lambda: exact.max(0).values,
        "Product": lambda: exact.prod(0),
    }[op]()
    wanted = wanted if floats else wanted.trunc()
    tensor = parts[hvd.rank()].cuda()
    before = tensor.clone()
    result = hvd.allreduce(tensor, op=getattr(hvd, op), name=f"o.{dtype}.{op}.{count}")
    assert result.device == tensor.device and result.dtype is kind and torch.equal(tensor, before)
    assert hvd.allreduce_(tensor, op=getattr(hvd, op), name=f"i.{dtype}.{op}.{count}") is tensor
    assert torch.equal(tensor, result)
    error = ((result.double().cpu() - wanted).abs() / wanted.abs().clamp(min=1)).max().item()
    limit = torch.finfo(kind).eps * size if floats else 0.0
    assert error <= limit, f"error {error} over {limit}"
    return float(error)


def other_collectives() -> None:
    """Broadcast, allgather, alltoall, reducescatter, groups, Adasum, and tensors that are not contiguous."""
    rank, size = hvd.rank(), hvd.size()
    root = torch.full((5, 3), rank, device="cuda")
    assert torch.equal(hvd.broadcast(root, size - 1, name="b"), torch.full_like(root, size - 1))
    rows = torch.full((rank + 1, 2), rank, device="cuda")
    assert hvd.allgather(rows, name="g").tolist() == [[r, r] for r in range(size) for _ in range(r + 1)]
    sent = torch.arange(size * 2, device="cuda") + 100 * rank
    got, counts = hvd.alltoall(sent, splits=[2] * size, name="a")
    assert got.tolist() == [2 * rank + i + 100 * r for r in range(size) for i in range(2)]
    assert counts.tolist() == [2] * size
    own = hvd.reducescatter(torch.ones(size * 3, device="cuda"), op=hvd.Sum, name="r")
    assert own.is_cuda and own.tolist() == [size] * 3
    group = hvd.grouped_allreduce([torch.full((n,), float(rank), device="cuda") for n in (1, 2000)], name="group")
    assert all(torch.equal(one, torch.full_like(one, (size - 1) / 2)) for one in group)
    wide = torch.full((6, 8), float(rank), device="cuda")
    hvd.allreduce_(wide.t()[::2], op=hvd.Sum, name="strided")
    assert wide[:, ::2].eq(sum(range(size))).all() and wide[:, 1::2].eq(rank).all()
    apart = torch.zeros(size, device="cuda")
    apart[rank] = 3.0
    assert torch.equal(hvd.allreduce(apart, op=hvd.Adasum, name="ada"), torch.full_like(apart, 3.0))
    halves = torch.full((100,), 1.5, device="cuda")
    assert hvd.allreduce(halves, op=hvd.Sum, name="cast", compression=hvd.Compression.bf16).eq(1.5 * size).all()


def behind_the_streams(steps: int, elements: int) -> None:
    """Long kernels before an allreduce and short ones after it, on streams of the program, memory being used again."""
    stream = torch.cuda.Stream()
    weight = torch.eye(2048, device="cuda")
    for step in range(steps):
        with torch.cuda.stream(stream):
            busy = weight
            for _ in range(8):
                busy = busy @ weight  # the identity: takes the GPU a while
            tensor = torch.zeros(elements, device="cuda")
            tensor += busy[0, 0] * (step + hvd.rank())
            handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="streamed")
            scratch = torch.full((elements,), -1.0, device="cuda")  # whatever the allocator gives out now
            result = hvd.synchronize(handle) * 2
            del tensor, scratch
            wanted = 2.0 * (step * hvd.size() + sum(range(hvd.size())))
        stream.synchronize()
        assert result.eq(wanted).all(), f"step {step}: {result[:3].tolist()}, expected {wanted}"


def submits_do_not_wait() -> tuple[float, float]:
    """Submit behind a kernel of half a second; return how long submit took and how long the kernel, in seconds."""
    import time

    hvd.allreduce_(torch.ones(10, device="cuda"), name="warm")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(int(1e9))
    tensor = torch.ones(1000, device="cuda")
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="behind")
    submitted = time.perf_counter() - begin
    hvd.synchronize(handle)
    torch.cuda.synchronize()
    assert tensor.eq(hvd.size()).all()
    return submitted, time.perf_counter() - begin


def refusals() -> list[str]:
    """What is said about a graph, and about a tensor on the CPU of one rank."""
    said = []
    graph, tensor = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
    try:
        with torch.cuda.graph(graph):
            hvd.allreduce_(tensor, name="graph")
    except InvalidArgument as error:
        said.append(str(error))
    try:
        hvd.allreduce_(torch.ones(4, device="cuda" if hvd.rank() == 0 else "cpu"), name="place")
    except Mismatch as error:
        said.append(str(error))
    assert hvd.allreduce(tensor, op=hvd.Sum, name="after").eq(hvd.size()).all()
    return said


def training(device: str, steps: int) -> list[float]:
    """Train a small network with DistributedOptimizer; return the weights' sums after each step."""
    hvd.shutdown()
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).double().to(device)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    sums = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + hvd.rank())
        batch = torch.rand(16, 32, generator=generator, dtype=torch.float64).to(device)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        sums.append(float(sum(one.double().sum() for one in model.parameters())))
    return sums


def cupy_arrays() -> None:
    """CuPy's arrays in every collective, in a stream of its own."""
    import cupy

    rank, size = np_hvd.rank(), np_hvd.size()
    with cupy.cuda.Stream(non_blocking=True):
        array = cupy.full((100, 7), rank, dtype=cupy.float32)
        assert np_hvd.allreduce_(array, op=np_hvd.Sum, name="c.i") is array
        assert bool((array == sum(range(size))).all())
        fresh = np_hvd.allreduce(array, op=np_hvd.Average, name="c.o")
        assert isinstance(fresh, cupy.ndarray) and bool((fresh == array).all())
        rows = np_hvd.allgather(cupy.full((rank + 1, 2), rank), name="c.g")
        assert cupy.asnumpy(rows).tolist() == [[r, r] for r in range(size) for _ in range(r + 1)]
        own = np_hvd.reducescatter(cupy.ones(2 * size), op=np_hvd.Sum, name="c.r")
        assert cupy.asnumpy(own).tolist() == [size, size]
        sent = np_hvd.broadcast(cupy.full(3, rank), 1, name="c.b")
        assert np.all(cupy.asnumpy(sent) == 1)


def digest_of_large(count: int) -> str:
    """Reduce a tensor that goes in many parts; the fingerprint must be the same on all ranks."""
    tensor = (torch.arange(count, device="cuda") % 97 + hvd.rank()).float()
    hvd.allreduce_(tensor, op=hvd.Sum, name="large")
    wanted = (torch.arange(count, device="cuda") % 97).float() * hvd.size() + sum(range(hvd.size()))
    assert torch.equal(tensor, wanted)
    return common.digest(tensor.cpu())
