"""What the ranks of the tests' jobs do with alltoall, reducescatter and Adasum. Small integers: everything is exact."""

from __future__ import annotations

from typing import Any

import torch

import ringtune.torch as hvd
from tests.jobs.cases.common import contribution, digest, expectation


def alltoall(dtype: str, splits: list[list[int]] | None, extra: int, width: int, process_set: Any = None) -> list[int]:
    """Send ``splits[i][j]`` rows from rank i to rank j and check every row; return what came from each rank."""
    kind = getattr(torch, dtype)
    size, rank = hvd.size(), hvd.rank()
    table = splits if splits is not None else [[2] * size] * size

    def rows(sender: int) -> torch.Tensor:
        count = sum(table[sender][:size]) + extra
        return contribution(sender, count * width, kind, hvd.Sum).view(count, width)

    expected = torch.cat([rows(i)[sum(table[i][:rank]) :][: table[i][rank]] for i in range(size)])
    mine = None if splits is None else table[rank][:size]
    name = f"{dtype}.{width}.{extra}.{splits}"
    output, received = hvd.synchronize(hvd.alltoall_async(rows(rank), mine, name=name))
    assert output.dtype is kind and torch.equal(output, expected)
    assert received.dtype is torch.int32
    found: list[int] = received.tolist()
    return found


def alltoall_returns() -> tuple[list[float], list[float], list[int], str]:
    """Return what the synchronous form returns without and with splits."""
    size = hvd.size()
    tensor = torch.arange(size, dtype=torch.float32) + 10 * hvd.rank()
    plain = hvd.alltoall(tensor)
    output, received = hvd.alltoall(tensor, torch.ones(size, dtype=torch.int32))
    return plain.tolist(), output.tolist(), received.tolist(), str(received.dtype)


def reducescatter(dtype: str, rows: int, op: int) -> int:
    """Check the own rows; return how many they are."""
    kind = getattr(torch, dtype)
    size, rank = hvd.size(), hvd.rank()
    whole = expectation(size, rows * 3, kind, op).view(rows, 3)
    counts = [rows // size + (one < rows % size) for one in range(size)]
    begin = sum(counts[:rank])
    tensor = contribution(rank, rows * 3, kind, op).view(rows, 3)
    before = digest(tensor)
    result = hvd.reducescatter(tensor, name=f"{dtype}.{rows}.{op}", op=op)
    assert result.dtype is kind and torch.equal(result, whole[begin : begin + counts[rank]])
    assert digest(tensor) == before, "the input was changed"
    return int(result.shape[0])


def scaled_reducescatter(prescale: float, postscale: float) -> list[float]:
    tensor = torch.tensor([2.0, 4.0]).repeat(hvd.size(), 1) * (hvd.rank() + 1)
    found: list[float] = hvd.reducescatter(
        tensor, op=hvd.Sum, prescale_factor=prescale, postscale_factor=postscale
    ).tolist()[0]
    return found


def grouped() -> tuple[list[list[float]], list[int]]:
    """Return results of a grouped reducescatter and a grouped allgather."""
    size = hvd.size()
    tensors = [torch.arange(size * (i + 1), dtype=torch.float32) for i in range(3)]
    scattered = hvd.grouped_reducescatter(tensors, op=hvd.Sum)
    assert isinstance(scattered, list)
    again = hvd.synchronize(hvd.grouped_reducescatter_async(tensors, op=hvd.Sum))
    assert all(torch.equal(a, b) for a, b in zip(scattered, again, strict=True))
    gathered = hvd.grouped_allgather([torch.full((hvd.rank() + 1,), i) for i in range(2)])
    assert isinstance(gathered, tuple)
    return [one.tolist() for one in scattered], [len(one) for one in gathered]


def adasum(dtype: str, parallel: bool) -> tuple[list[float], str]:
    """Combine parallel or orthogonal vectors in place; return the result and its fingerprint."""
    tensor = torch.zeros(7, dtype=getattr(torch, dtype))
    tensor[:] = torch.arange(7) if parallel else 0
    if not parallel:
        tensor[hvd.rank()] = hvd.rank() + 1
    result = hvd.allreduce_(tensor, name=f"adasum.{dtype}.{parallel}", op=hvd.Adasum)
    found: list[float] = result.double().tolist()
    return found, digest(result)


def adasum_gradients_step(steps: int) -> tuple[str, list[float]]:
    """Step with the delta optimizer on equal gradients; return a fingerprint and the parameters."""
    weight = torch.nn.Parameter(torch.ones(4))
    bias = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight, bias], lr=0.5), [("weight", weight), ("bias", bias)], op=hvd.Adasum
    )
    for _ in range(steps):
        optimizer.zero_grad()
        (weight.sum() + 2 * bias.sum()).backward()
        optimizer.step()
    return digest(weight.detach()), [*weight.tolist(), *bias.tolist()]


def gradient_of(what: str) -> list[float]:
    """Return the gradient of a collective's weighted sum; the weights are rank + 1."""
    size, weight = hvd.size(), float(hvd.rank() + 1)
    tensor = torch.ones(size, requires_grad=True)
    if what == "alltoall":
        (hvd.alltoall(tensor) * weight).sum().backward()
    elif what == "alltoall with splits":
        output, _ = hvd.alltoall(tensor, [1] * (size - 1) + [0])
        (output * weight).sum().backward()
    elif what == "reducescatter":
        (hvd.reducescatter(tensor, op=hvd.Sum) * weight).sum().backward()
    elif what == "reducescatter average":
        (hvd.reducescatter(tensor, op=hvd.Average, prescale_factor=0.5) * weight).sum().backward()
    else:
        first, second = hvd.grouped_reducescatter([tensor, tensor], op=hvd.Sum)
        ((first + 2 * second) * weight).sum().backward()
    assert tensor.grad is not None
    found: list[float] = tensor.grad.tolist()
    return found


def strided() -> tuple[list[float], list[float]]:
    """Call alltoall with every second element of a tensor."""
    tensor = torch.arange(2 * hvd.size(), dtype=torch.float32)[::2]
    assert not tensor.is_contiguous() or hvd.size() == 1
    return hvd.alltoall(tensor).tolist(), hvd.reducescatter(tensor, op=hvd.Sum).tolist()


def refused(what: str) -> str:
    """Do something that this rank refuses alone; return the error's class."""
    size = hvd.size()
    calls = {
        "splits of int64": lambda: hvd.alltoall(torch.ones(size), torch.ones(size, dtype=torch.int64)),
        "splits in 2D": lambda: hvd.alltoall(torch.ones(size), torch.ones((1, size), dtype=torch.int32)),
        "too few splits": lambda: hvd.alltoall(torch.ones(size), [1] * (size - 1)),
        "too many rows": lambda: hvd.alltoall(torch.ones(size), [2] * size),
        "rows that do not divide": lambda: hvd.alltoall(torch.ones(size + 1)),
        "a scalar": lambda: hvd.reducescatter(torch.tensor(1.0)),
        "a maximum": lambda: hvd.reducescatter(torch.ones(size), op=hvd.Max),
        "a bad root": lambda: hvd.broadcast(torch.ones(1), size),
    }
    try:
        calls[what]()
    except Exception as error:
        return ", ".join(kind.__name__ for kind in type(error).__mro__)
    return "nothing"


def mismatched(what: str) -> tuple[str, float]:
    """Do something that ranks disagree about; return the error's class and a sum made afterwards."""
    rows = hvd.rank() + 1
    kinds = (torch.int32, torch.float32)
    calls = {
        "reducescatter shapes": lambda: hvd.reducescatter(torch.ones(rows, 2), name="m"),
        "reducescatter operations": lambda: hvd.reducescatter(torch.ones(4), name="m", op=hvd.rank() % 2),
        "alltoall shapes": lambda: hvd.alltoall(torch.ones(hvd.size(), rows), name="m"),
        "alltoall dtypes": lambda: hvd.alltoall(torch.ones(hvd.size(), dtype=kinds[rows % 2]), name="m"),
    }  # fmt: skip
    try:
        calls[what]()
    except hvd.HorovodInternalError as error:
        return type(error).__name__, float(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
    return "nothing", 0.0
