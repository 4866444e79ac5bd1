"""Single situations of gradients that not every rank has, or that the caller touches while they are reduced."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune.session import require
from tests.jobs.cases.uneven import EXACT

EXPECTED = {"Average": 5 / 3, "Sum": 5.0, "Min": 2.0, "Max": 3.0, "Product": 6.0}


def _one(value: float, **options: Any) -> tuple[torch.nn.Parameter, Any]:
    param = torch.nn.Parameter(torch.full((2,), value))
    return param, hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("one", param)], **options)


def some_ranks(op: str) -> float:
    """Ranks 0 and 2 have the gradients 2 and 3, rank 1 has none; in two steps, since the second knows of it."""
    param, optimizer = _one(1.0, op=getattr(hvd, op))
    for _ in range(2):
        optimizer.zero_grad()
        if hvd.rank() != 1:
            (param * (2.0 if hvd.rank() == 0 else 3.0)).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.synchronize()
    assert param.grad is not None and param.grad[0] == param.grad[1]
    return round(param.grad[0].item(), 12) if op != "Average" else 5 / 3 if abs(param.grad[0] - 5 / 3) < 1e-6 else 0.0


class ByHand:
    """A compressor as scripts for Horovod bring their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return tensor.to(torch.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


def compressed(compression: str) -> list[float | None]:
    """The gradient of one element by step: on no rank, on rank 1, on no rank, on both."""
    param, optimizer = _one(1.0, compression=getattr(hvd.Compression, compression, ByHand))
    found: list[float | None] = []
    for ranks in ([], [1], [], [0, 1]):
        optimizer.zero_grad()
        if hvd.rank() in ranks:
            (param * 3.0).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.synchronize()
        found.append(None if param.grad is None else param.grad[1].item())
    return found


def touched_in_flight() -> tuple[list[str], torch.Tensor | None]:
    """Clip, replace, move, resize and drop a gradient between backward and step."""
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.5), [(f"touched{index}", param) for index, param in enumerate(params)]
    )

    def step(touch: Any) -> str:
        optimizer.zero_grad()
        (params[0] * params[1]).sum().backward()  # type: ignore[no-untyped-call]
        touch(params[1])
        try:
            optimizer.step()
        except ValueError as error:
            return str(error)
        return ""

    def replace(param: torch.Tensor) -> None:
        param.grad = param.grad * 2

    def drop(param: torch.Tensor) -> None:
        param.grad = None

    def move(param: torch.Tensor) -> None:
        assert param.grad is not None
        param.grad.data = param.grad.data.clone()

    def resize(param: torch.Tensor) -> None:
        assert param.grad is not None
        for slot in optimizer._reducer.slots:  # nothing is written any more, since this frees the memory
            while not require().poll(slot.ticket):
                pass
        param.grad.untyped_storage().resize_(1 << 20)

    messages = [step(touch) for touch in (lambda param: param.grad.mul_(0.5), replace, move, resize)]
    assert step(drop) == ""
    dropped = params[1].grad
    assert step(lambda param: None) == ""  # and all is well again
    return messages, dropped


def refused_on_one_rank(compression: str) -> tuple[str, list[float]]:
    """Give rank 1 a gradient that cannot be reduced; return the error, and the gradients of this step and the next."""
    param = torch.nn.Parameter(torch.ones(4, 4))
    base = torch.optim.SGD([param], lr=1.0)
    optimizer = hvd.DistributedOptimizer(base, [("refused", param)], compression=EXACT[compression])
    message, found = "", []
    for step in range(2):
        optimizer.zero_grad()
        param.grad = torch.full((4, 4), 1.0 + hvd.rank())
        if step == 0 and hvd.rank() == 1:
            param.grad = torch.ones(4, 4, requires_grad=True) * 2
        try:
            optimizer.synchronize()
        except ValueError as error:
            message = str(error)
        found.append(float(param.grad[0, 0]))
    return message, found


def copied() -> tuple[list[bool], list[float]]:
    """Train on with a deep copy and with what was pickled; return whether all is as it was."""
    param, optimizer = _one(1.0, op=hvd.Sum)
    other, twin = copy.deepcopy((param, optimizer))
    (other * (1.0 + hvd.rank())).sum().backward()  # type: ignore[no-untyped-call]
    twin.step()
    alike = [
        type(twin) is type(optimizer),
        torch.equal(other, torch.full((2,), -2.0)),
        torch.equal(param, param * 0 + 1),
    ]
    loaded = pickle.loads(pickle.dumps(optimizer))
    theirs = loaded.param_groups[0]["params"][0]
    (theirs * 0.25).sum().backward()
    loaded.step()
    return alike, theirs.tolist()


def collected() -> tuple[list[int], list[float]]:
    """Drop an optimizer between backward and step; return the hooks before and after, and another one's gradient."""
    param, optimizer = _one(1.0, op=hvd.Sum)
    hooks = [len(param._post_accumulate_grad_hooks)]
    (param * (1.0 + hvd.rank())).sum().backward()  # type: ignore[no-untyped-call]
    del optimizer
    hooks.append(len(param._post_accumulate_grad_hooks))
    param.grad = None
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("one", param)], op=hvd.Sum)
    (param * (1.0 + hvd.rank())).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.synchronize()
    assert param.grad is not None
    return hooks, param.grad.tolist()


def taken() -> str:
    """Wrap a parameter again in another way and go on with the first optimizer."""
    param = torch.nn.Parameter(torch.ones(2))
    first, _ = (
        hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("taken", param)], op=op)
        for op in (hvd.Sum, hvd.Average)
    )
    try:
        first.step()
    except ValueError as error:
        return str(error)
    return "no error"


def reshaped_under_compression() -> str:
    """Prune a parameter whose gradient a compressor with a memory sends."""
    param = torch.nn.Parameter(torch.ones(50, 30))
    compression = hvd.Compression.topk(ratio=0.5, min_elements=1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("big", param)], compression=compression)
    param.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    with torch.no_grad():
        param.data = torch.ones(40, 30)
    param.grad = None
    try:
        param.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    except ValueError as error:
        return str(error)
    return "no error"


def adasum_thawed() -> list[float]:
    """Thaw one parameter and add another under Adasum; return a value before and the values after."""
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.constant_(model.bias, 0.25)
    model.weight.requires_grad_(False)
    base = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(base, model.named_parameters(), op=hvd.Adasum)
    added = torch.nn.Parameter(torch.ones(2))
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(1, 2) + hvd.rank()) * added).sum().backward()
        optimizer.step()
        model.weight.requires_grad_(True)
        if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": [added]})
    return [0.5, *model.weight.flatten().tolist(), *model.bias.tolist(), *added.tolist()]


def in_two_sets() -> list[float]:
    """Train models of the same names in sets that share one rank; return what this rank's weights came to."""
    found = []
    for members in ([1, 2], [0, 2]):
        process_set = hvd.add_process_set(members)
        if process_set.included():
            model = torch.nn.Linear(1, 1, bias=False)
            torch.nn.init.zeros_(model.weight)
            base = torch.optim.SGD(model.parameters(), lr=1.0)
            optimizer = hvd.DistributedOptimizer(base, model.named_parameters(), process_set=process_set)
            model(torch.full((1, 1), 2.0 * hvd.rank())).sum().backward()
            optimizer.step()
            found.append(float(model.weight))
    return found
