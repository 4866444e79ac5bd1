"""What ranks do in the tests of reductions into new tensors, and of callers that do not come to wait."""

from __future__ import annotations

import time

import torch

import ringtune.torch as hvd
from ringtune.torch.handles import at_once
from tests.jobs.cases.fast_path import Subclass, fill, frames, total

NEW = {
    "small": lambda: torch.empty(3, 5),
    "transposed": lambda: torch.empty(5, 3).t(),
    "integers": lambda: torch.empty(4, dtype=torch.int32),
    "scalar": lambda: torch.empty(()),
    "empty": lambda: torch.empty(0, 3),
    "parameter": lambda: torch.nn.Parameter(torch.empty(4), requires_grad=False),
    "subclass": lambda: torch.empty(4).as_subclass(Subclass),
    "one too large": lambda: torch.empty((1 << 14) + 1),
    "grows": lambda: torch.empty(4).requires_grad_(),
}
"""Tensors that are reduced into new ones."""
SHORT = ("small", "integers", "scalar", "parameter", "one too large")
LONG = ("empty", "subclass", "grows")


def into_new(what: str) -> list[str]:
    """Reductions into new tensors leave the old ones; return what the last call entered."""
    entered: list[str] = []
    for number in range(20):
        tensor = fill(NEW[what](), number)
        before = tensor.detach().clone()
        results: list[torch.Tensor] = []
        entered = frames(lambda t=tensor, r=results: r.append(hvd.allreduce(t, name=f"new.{what}", op=hvd.Sum)))  # type: ignore[misc]
        (result,) = results
        assert torch.equal(tensor.detach(), before)
        assert result.shape == tensor.shape and result.dtype == tensor.dtype and result.is_contiguous()
        assert torch.equal(result.detach(), torch.full_like(before, total(number))), number
        assert result.requires_grad == tensor.requires_grad
        # A rank that reduces in place under the same name is alike to the others.
        name = f"new.{what}.mixed"
        mixed = hvd.allreduce(before, name=name) if hvd.rank() else hvd.allreduce_(before.contiguous(), name=name)
        assert torch.allclose(mixed.double(), torch.full_like(mixed, total(number) / hvd.size()).double(), atol=1)
    return entered


KEPT = {
    "allreduce": lambda tensor: hvd.allreduce(tensor, name="kept.sum", op=hvd.Sum),
    "broadcast": lambda tensor: hvd.broadcast(tensor, hvd.size() - 1, name="kept.broadcast"),
    "allgather": lambda tensor: hvd.allgather(tensor, name="kept.gather"),
    "alltoall": lambda tensor: hvd.alltoall(tensor, name="kept.alltoall"),
    "reducescatter": lambda tensor: hvd.reducescatter(tensor, name="kept.scatter", op=hvd.Sum),
}
"""Collectives whose large results lie in memory that is used again."""


def kept(what: str) -> None:
    """Results that are still held stay as they are, though those that are let go make room for others."""
    held: list[tuple[torch.Tensor, float]] = []
    for number in range(12):
        result = KEPT[what](fill(torch.empty(6 * (1 << 17)), number))  # 3 MiB
        summed = what in ("allreduce", "reducescatter")
        first, last = 1 + number, hvd.size() + number
        held.append((result, total(number) if summed else float(last)))
        assert result.is_contiguous() and not result._is_view()
        assert result[0].item() == (total(number) if summed else last if what == "broadcast" else first)
        held = held[-3:]
        for one, expected in held:
            assert one[-1].item() == expected, (number, one[-1].item(), expected)


def stopped_before_the_wait(name: str) -> None:
    """A caller that is interrupted before it waits holds nobody up."""
    tensor = fill(torch.ones(4))
    for _ in range(8):
        hvd.allreduce_(fill(torch.ones(4)), name=name, op=hvd.Sum)
    handles: list[int] = []

    def start() -> int:
        handles.append(hvd.allreduce_async_(tensor, name=name, op=hvd.Sum))
        raise KeyboardInterrupt

    if hvd.rank() == 0:
        hvd.allreduce_(tensor, name=name, op=hvd.Sum)
    else:
        try:
            at_once(start)
        except KeyboardInterrupt:
            deadline = time.monotonic() + 60
            while not hvd.poll(handles[0]) and time.monotonic() < deadline:
                time.sleep(0.001)
            assert hvd.poll(handles[0])
            hvd.synchronize(handles[0])
    assert tensor.tolist() == [total()] * 4
