"""What ranks do with tensors whose memory is not what they mean, and with tensors that change under a name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor

import ringtune.numpy as arrays
import ringtune.torch as hvd
from ringtune.errors import InvalidArgument
from tests.jobs.cases.misuse import WRONG, calls, right

Make = Callable[[], torch.Tensor]
_COUNT = 6


def _mine() -> torch.Tensor:
    """Return other values on every rank, and other ones at each index."""
    return torch.arange(_COUNT, dtype=torch.float32) + 10 * hvd.rank() + 1


def _spread() -> torch.Tensor:
    wide = torch.zeros(_COUNT, 3)
    wide[:, 1] = _mine()
    return wide[:, 1]


RESOLVED: dict[str, Make] = {
    "plain": _mine,
    "negated": lambda: torch._neg_view(-_mine()),
    "imaginary part of a conjugate": lambda: torch.complex(torch.zeros(_COUNT), -_mine()).conj().imag,
    "negated and strided": lambda: torch._neg_view(-_spread()),
    "strided": _spread,
    "reversed copy": lambda: _mine().flip(0).flip(0),
    "offset": lambda: torch.cat([torch.zeros(3), _mine()])[3:],
    "copied on write": lambda: torch._lazy_clone(_mine()),
    "parameter": lambda: torch.nn.Parameter(_mine()),
    "subclass": lambda: _mine().as_subclass(_Renamed),
}
"""Tensors with the values of `_mine`."""


class _Renamed(torch.Tensor):
    """A class without a meaning of its own."""


def _short() -> torch.Tensor:
    tensor = _mine()
    tensor.untyped_storage().resize_(8)
    return tensor


def _empty() -> torch.Tensor:
    tensor = _mine()
    tensor.untyped_storage().resize_(0)
    return tensor


def _fake() -> torch.Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(_COUNT)


REFUSED: dict[str, Make] = {
    "CSR": lambda: torch.eye(_COUNT).to_sparse_csr(),
    "COO": lambda: _mine().to_sparse(),
    "mkldnn": lambda: _mine().to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(4)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(4)], layout=torch.jagged),
    "quantised": lambda: torch.quantize_per_tensor(_mine(), 1.0, 0, torch.qint8),
    "meta": lambda: torch.ones(_COUNT, device="meta"),
    "half a complex number": lambda: torch.zeros(_COUNT, dtype=torch.complex32),
    "wrapper": lambda: TwoTensor(_mine(), _mine()),
    "fake": _fake,
    "shrunk storage": _short,
    "storage without memory": _empty,
}

REFUSED_IN_PLACE: dict[str, Make] = {
    "expanded": lambda: torch.ones(1).expand(_COUNT),
    "overlapping": lambda: torch.ones(9).as_strided((_COUNT,), (0,)),
    "overlapping in two dimensions": lambda: torch.ones(9).as_strided((3, 2), (1, 1)),
    "zero tensor": lambda: torch._efficientzerotensor((_COUNT,)),
}

FUNCTIONS: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
    "allreduce": lambda tensor, name: hvd.allreduce(tensor, op=hvd.Sum, name=name),
    "allreduce_": lambda tensor, name: hvd.allreduce_(tensor, op=hvd.Sum, name=name),
    "allreduce_async_": lambda tensor, name: hvd.synchronize(hvd.allreduce_async_(tensor, op=hvd.Sum, name=name)),
    "grouped_allreduce_": lambda tensor, name: hvd.grouped_allreduce_([tensor], op=hvd.Sum, name=name)[0],
    "grouped_allreduce": lambda tensor, name: hvd.grouped_allreduce([tensor], op=hvd.Sum, name=name)[0],
    "broadcast": lambda tensor, name: hvd.broadcast(tensor, 1, name=name),
    "broadcast_": lambda tensor, name: hvd.broadcast_(tensor, 1, name=name),
    "allgather": lambda tensor, name: hvd.allgather(tensor, name=name),
    "alltoall": lambda tensor, name: hvd.alltoall(tensor, name=name),
    "reducescatter": lambda tensor, name: hvd.reducescatter(tensor, op=hvd.Sum, name=name),
}


def expected(function: str) -> torch.Tensor:
    """Return what a function makes of the values of `_mine` on two ranks."""
    own = torch.arange(_COUNT, dtype=torch.float32) + 1
    both, half = (own, own + 10), slice(hvd.rank() * 3, hvd.rank() * 3 + 3)
    if "allreduce" in function:
        return both[0] + both[1]
    if "broadcast" in function:
        return both[1]
    return {
        "allgather": torch.cat(both),
        "alltoall": torch.cat([one[half] for one in both]),
        "reducescatter": (both[0] + both[1])[half],
    }[function]


def resolved() -> list[str]:
    """Give every odd tensor to every function, first and when calls are remembered; return what is wrong."""
    wrong = []
    for function, call in FUNCTIONS.items():
        for turn in range(2):
            for _ in range(2 * turn):
                call(_mine(), f"odd.{function}")
            for kind, make in RESOLVED.items():
                tensor = make()
                beside = tensor._lazy_clone() if kind == "copied on write" else None
                with torch.no_grad():
                    got = call(tensor, f"odd.{function}").detach().as_subclass(torch.Tensor)
                want = expected(function)
                if not torch.equal(got, want):
                    wrong.append(f"{function} of {kind}, turn {turn}: {got.tolist()} instead of {want.tolist()}")
                if beside is not None and not torch.equal(beside, _mine()):
                    wrong.append(f"{function} wrote into another tensor")
                if function.endswith("_") and not torch.equal(tensor.detach().as_subclass(torch.Tensor), want):
                    wrong.append(f"{function} of {kind}: the tensor itself is {tensor.tolist()}")
    expanded = hvd.allreduce(torch.full((1,), hvd.rank() + 1.0).expand(4), op=hvd.Sum, name="odd.expanded")
    zeros = hvd.allreduce(torch._efficientzerotensor((4,)), op=hvd.Sum, name="odd.zeros")
    return [*wrong, *([] if expanded.tolist() == [3.0] * 4 and zeros.tolist() == [0.0] * 4 else ["expanded or zeros"])]


def refused() -> list[str]:
    """Give what cannot be reduced to every function; return what is not refused in words that name it."""
    wrong = []

    def expect(function: str, kind: str, tensor: Any) -> None:
        try:
            FUNCTIONS[function](tensor, f"odd.{function}")
        except InvalidArgument as error:
            if not str(error).startswith(function.removesuffix("_")) or ": tensor" not in str(error):
                wrong.append(f"{function} of {kind}: {error}")
        except Exception as error:
            wrong.append(f"{function} of {kind}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{function} of {kind} was taken")

    for function, call in FUNCTIONS.items():
        for _ in range(2):
            call(_mine(), f"odd.{function}")
        for kind, make in REFUSED.items():
            expect(function, kind, make())
        for kind, make in REFUSED_IN_PLACE.items() if function.endswith("_") else ():
            expect(function, kind, make())

    def traced(function: str, tensor: torch.Tensor) -> torch.Tensor:
        expect(function, "a transform", tensor)
        return tensor.sum()

    for function in FUNCTIONS:
        for transform in (torch.func.grad, torch.func.vmap, torch.func.functionalize):
            transform(lambda tensor, name=function: traced(name, tensor))(
                torch.ones(2, _COUNT)[0 if transform is not torch.func.vmap else ...]
            )
    return wrong


def misused() -> list[str]:
    """Give every wrong argument to every function, with the runtime behind it; then the job must go on."""
    wrong = []
    for front in (hvd, arrays):
        for name, function in calls(front):
            options = right(front, function)
            for argument, values in WRONG.items():
                if argument not in inspect.signature(function).parameters:
                    continue
                for value in values:
                    try:
                        function(**{**options, argument: value})
                        wrong.append(f"{name}({argument}={value!r}) was taken")
                    except (InvalidArgument, TypeError) as error:
                        if any(word in str(error) for word in ("incompatible function", "std::", "nanobind")):
                            wrong.append(f"{name}({argument}={value!r}): {error}")
            for arguments in ((), (1,) * 20):
                try:
                    function(*arguments)
                    if name != "barrier":
                        wrong.append(f"{name}{arguments} was taken")
                except (InvalidArgument, TypeError) as error:
                    if name.rstrip("_") not in str(error):
                        wrong.append(f"{name}{arguments}: {error}")
    total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="after misuse")
    return [*wrong, *([] if total.tolist() == [2.0] * 3 else ["the job is not usable any more"])]


CHANGES = (
    "grow",
    "shrink",
    "set_",
    "data",
    "dtype",
    "transpose",
    "negate",
    "grad",
    "offset",
    "same",
    "default",
    "async",
)


def changed(changes: list[tuple[str, int]]) -> list[str]:
    """Change one tensor again and again, and reduce it under the same names; return what is wrong.

    Args:
        changes: Each a way and a size, the same on all ranks.
    """
    wrong = []
    tensor = torch.nn.Parameter(torch.ones(4), requires_grad=False)
    for number, (way, size) in enumerate(changes):
        tensor = _change(tensor, way, size)
        for function in ("allreduce", "allreduce_", "allreduce_async_", "grouped_allreduce_", "allgather", "broadcast"):
            with torch.no_grad():
                tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) + hvd.rank() + number)
                plain = tensor.detach().clone().resolve_neg().contiguous()
                for _ in range(2):
                    got = FUNCTIONS[function](tensor, f"changed.{function}")
                    both = (plain - hvd.rank(), plain - hvd.rank() + 1)
                    if not torch.equal(got, _of(function, both)) or got.dtype != tensor.dtype:
                        wrong.append(f"{number} {way} {size} {function}: {got.tolist()}, sent {plain.tolist()}")
                    tensor.copy_(plain)
    torch.set_default_dtype(torch.float32)
    return wrong


def _of(function: str, both: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    if function == "allgather":
        return torch.cat(both)
    return both[1] if function == "broadcast" else both[0] + both[1]


def _change(tensor: Any, way: str, size: int) -> Any:
    """Return the tensor in another state; the same object where torch can do so."""
    with torch.no_grad():
        if way in ("grow", "shrink"):
            rows = tensor.numel() + size if way == "grow" else max(1, tensor.numel() // (size + 1))
            if tensor.is_neg() or not tensor.is_contiguous() or tensor.requires_grad:
                return torch.nn.Parameter(torch.ones(rows, dtype=tensor.dtype), requires_grad=False)
            tensor.resize_(rows)
        elif way == "set_":
            if not tensor.is_neg() and not tensor.requires_grad:
                tensor.set_(torch.ones(size + 1, dtype=tensor.dtype))
        elif way == "data":
            tensor.data = torch.ones(size + 1, 2, dtype=tensor.dtype)
        elif way == "dtype":
            kind = (torch.float64, torch.float16, torch.float32)[size % 3]
            tensor.data = torch.ones(size + 1, dtype=kind)
        elif way == "transpose":
            tensor.data = torch.ones(size + 1, 3, dtype=tensor.dtype).t()
        elif way == "negate":
            tensor.data = torch._neg_view(torch.ones(size + 1, dtype=tensor.dtype))
        elif way == "offset":
            tensor.data = torch.ones(size + 5, dtype=tensor.dtype)[3:]
        elif way == "grad":
            tensor.requires_grad_(not tensor.requires_grad)
        elif way == "default":
            torch.set_default_dtype((torch.float64, torch.float32)[size % 2])
        elif way == "async":
            tensor = tensor.detach().clone()
    return tensor
