"""What ranks do with this front end inside of compiled code, beside what plain code makes of the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ringtune.torch as hvd

Function = Callable[[torch.Tensor], torch.Tensor]


def _pair(tensor: torch.Tensor) -> torch.Tensor:
    first, second = hvd.grouped_allreduce([tensor, tensor + 1], op=hvd.Sum, name="c.pair")
    return first + second


def _in_place(tensor: torch.Tensor) -> torch.Tensor:
    sent = tensor * 2
    hvd.allreduce_(sent, op=hvd.Sum, name="c.in_place")
    return sent + 1


def _later(tensor: torch.Tensor) -> torch.Tensor:
    handle = hvd.allreduce_async_(tensor * 2, op=hvd.Sum, name="c.later")
    return hvd.synchronize(handle) + hvd.size()


def _object(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * hvd.broadcast_object(hvd.rank() + 3, 1, name="c.object")


FUNCTIONS: dict[str, Function] = {
    "allreduce": lambda tensor: hvd.allreduce(tensor * 2, op=hvd.Sum, name="c.allreduce") + 1,
    "unnamed": lambda tensor: hvd.allreduce(tensor * 2) + 1,
    "pair": _pair,
    "in place": _in_place,
    "later": _later,
    "broadcast": lambda tensor: hvd.broadcast(tensor * 2, 1, name="c.broadcast") + 1,
    "allgather": lambda tensor: hvd.allgather(tensor * 2, name="c.allgather") + 1,
    "alltoall": lambda tensor: hvd.alltoall(tensor * 2, name="c.alltoall") + 1,
    "reducescatter": lambda tensor: hvd.reducescatter(tensor * 2, op=hvd.Sum, name="c.reducescatter") + 1,
    "object": _object,
}


def functions(backend: str) -> list[str]:
    """Call each function plain and compiled, with and without a gradient; return which differ."""
    wrong = []
    for name, function in FUNCTIONS.items():
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        for flows in (False, True) if name not in ("in place", "later") else (False,):
            for number in range(3):
                results = []
                for call in (function, compiled):
                    tensor = (torch.arange(4.0) + hvd.rank() + number).requires_grad_(flows)
                    result = call(tensor)
                    if flows:
                        result.sum().backward()
                    results.append((result.detach(), tensor.grad))
                (plain, gradient), (got, other) = results
                same = torch.equal(plain, got) and (gradient is None) == (other is None)
                if not same or (gradient is not None and not torch.equal(gradient, other)):
                    wrong.append(f"{name} {flows} {number}: {got} {other} instead of {plain} {gradient}")
    return wrong


def _trained(change: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Return the weights after some steps of a model that normalises over all ranks."""
    torch.manual_seed(1)
    model: Any = nn.Sequential(nn.Linear(4, 4), hvd.SyncBatchNorm(4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    call = change(step)
    numbers = torch.Generator().manual_seed(hvd.rank())
    for _ in range(4):
        call(torch.randn(5, 4, generator=numbers))
    return [value.detach().clone() for value in model.state_dict().values()]


def training(backend: str) -> list[str]:
    """Train with and without a compiler; return what differs."""
    torch._dynamo.reset()
    plain = _trained(lambda step: step)
    compiled = _trained(lambda step: torch.compile(step, backend=backend))
    same = [torch.allclose(one, other) for one, other in zip(plain, compiled, strict=True)]
    everywhere = hvd.allgather_object(compiled[0], name="c.weights")
    return [
        *([] if all(same) else [f"differ from plain: {same}"]),
        *([] if torch.equal(*everywhere) else ["differ between ranks"]),
    ]
