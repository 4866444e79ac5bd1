"""Alltoall and reducescatter that return new tensors; gradients flow through them.

The gradient of an alltoall sends every row back; that of a reducescatter gathers the rows' gradients, times the number
of ranks after a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from ringtune.common.process_sets import ProcessSet, global_process_set, number_of
from ringtune.torch import alltoall_reducescatter, handles, persistent
from ringtune.torch.alltoall_reducescatter import Splits
from ringtune.torch.arguments import Average, Sum
from ringtune.torch.autograd import allgather, flows_back, grouped_allgather
from ringtune.torch.checked_calls import checked
from ringtune.torch.compression import Chosen, Compression
from ringtune.torch.handles import at_once


class HorovodAlltoall(Function):
    """Alltoall whose gradient is the reverse alltoall."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Splits | None, name: str | None, process_set: ProcessSet
    ) -> Any:
        """Send rows to all ranks; returns those received and how many came from each rank."""
        output, received = at_once(alltoall_reducescatter.alltoall_async, tensor, splits, name, process_set)
        ctx.rows, ctx.process_set, ctx.received = tensor.shape[0], process_set, received.tolist()
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Send every gradient to where its row came from; rows that were not sent get zeros."""
        grad, _ = alltoall(grads[0], ctx.received, process_set=ctx.process_set)
        missing = ctx.rows - grad.shape[0]
        if missing:
            grad = torch.cat([grad, grad.new_zeros((missing, *grad.shape[1:]))])
        return grad, None, None, None


class HorovodReducescatter(Function):
    """Reducescatter whose gradient is gathered from all ranks."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: int, factors: tuple[float, float], process_set: ProcessSet
    ) -> Any:
        """Reduce and keep the own rows."""
        ctx.factor, ctx.process_set = _gradient_factor(op, factors, process_set), process_set
        return at_once(alltoall_reducescatter.reducescatter_async, tensor, name, op, process_set, *factors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gather the gradients of all rows."""
        return allgather(grads[0] * ctx.factor, process_set=ctx.process_set), None, None, None, None


class HorovodGroupedReducescatter(Function):
    """Several reducescatters; gradients as in `HorovodReducescatter`."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        factors: tuple[float, float],
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> Any:
        """Reduce and keep the own rows of each."""
        ctx.factor, ctx.process_set = _gradient_factor(op, factors, process_set), process_set
        return tuple(
            at_once(alltoall_reducescatter.grouped_reducescatter_async, tensors, name, op, process_set, *factors)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gather the gradients of all rows."""
        scaled = [grad * ctx.factor for grad in grads]
        return None, None, None, None, *grouped_allgather(scaled, process_set=ctx.process_set)


def _gradient_factor(op: int, factors: tuple[float, float], process_set: ProcessSet) -> float:
    return factors[0] * factors[1] * ((process_set.size() or 1) if op == Sum else 1)


@persistent.blocking("alltoall")
@checked
def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    out: torch.Tensor | None = None,
) -> Any:
    """Send rows of the tensor to every rank and return theirs; differentiable. See `alltoall_async`.

    Args:
        tensor: Its first dimension is split.
        splits: Rows for each rank; None: equal shares.
        name: Name by which ranks match the operation; counted if missing.
        process_set: The ranks that take part.
        out: Where the rows go, which no gradient flows through then; a new tensor if missing. Not in Horovod.

    Returns:
        The rows from all ranks in order; with splits a tuple of them and how many came from each rank (int32, or as
        the given splits tensor).
    """
    handles.check_out(out, flows_back=flows_back(tensor))
    if flows_back(tensor):
        output, received = HorovodAlltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    else:
        output, received = at_once(alltoall_reducescatter.alltoall_async, tensor, splits, name, process_set)
        if splits is None:
            params = persistent.CollectiveParams(
                persistent.Kind.ALLTOALL, 0, handles.DTYPES[tensor.dtype], process_set=number_of(process_set)
            )
            handles.remember("alltoall", (name, tensor), params, (None, None, None, process_set, None), output)
    output = handles.into(output, out)
    return output if splits is None else (output, received)


@persistent.blocking("reducescatter")
@checked
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Chosen = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Reduce the tensor and return this rank's rows; differentiable. See `reducescatter_async`.

    Args:
        tensor: This rank's contribution.
        name: Name by which ranks match the operation; counted if missing.
        compression: How the tensor travels.
        op: ``Average`` or ``Sum``.
        process_set: The ranks that take part.
        prescale_factor: Multiplies each contribution.
        postscale_factor: Multiplies the result.
        out: Where the rows go, which no gradient flows through then; a new tensor if missing. Not in Horovod.
    """
    handles.check_out(out, flows_back=flows_back(tensor))
    small, context = compression.compress(tensor)
    factors = (prescale_factor, postscale_factor)
    if flows_back(small):
        reduced = HorovodReducescatter.apply(small, name, op, factors, process_set)  # type: ignore[no-untyped-call]
    else:
        reduced = at_once(alltoall_reducescatter.reducescatter_async, small, name, op, process_set, *factors)
        if compression is Compression.none:
            scales = float(prescale_factor), float(postscale_factor)
            dtype, number = handles.DTYPES[tensor.dtype], number_of(process_set)
            params = persistent.CollectiveParams(persistent.Kind.REDUCESCATTER, 0, dtype, op, *scales, number)
            given = None, None, compression, op, process_set, prescale_factor, postscale_factor, None
            handles.remember("reducescatter", (name, tensor), params, given, reduced)
    return handles.into(compression.decompress(reduced, context), out)


@checked
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Chosen = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Do several reducescatters as one group and return the list of results; differentiable. See `reducescatter`."""
    compressed = [compression.compress(tensor) for tensor in tensors]
    factors = (prescale_factor, postscale_factor)
    reduced = HorovodGroupedReducescatter.apply(  # type: ignore[no-untyped-call]
        name, op, factors, process_set, *(small for small, _ in compressed)
    )
    return [compression.decompress(one, context) for one, (_, context) in zip(reduced, compressed, strict=True)]
