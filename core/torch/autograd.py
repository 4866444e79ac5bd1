"""The synchronous collectives that return new tensors; gradients flow through them.

The gradient of an allreduce is the allreduce of the gradient; of a broadcast the average over ranks on the root and
zero elsewhere; of an allgather this rank's slice of the average over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from ringtune import session
from ringtune.common.process_sets import ProcessSet, global_process_set, number_of
from ringtune.torch import asynchronous, handles, persistent
from ringtune.torch.arguments import Average, make_reduction, resolve_op
from ringtune.torch.checked_calls import checked
from ringtune.torch.compression import Chosen, Compression, to_travel
from ringtune.torch.handles import at_once


class HorovodAllreduce(Function):
    """Allreduce whose gradient is the allreduce of the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        factors: tuple[float, float],
        process_set: ProcessSet,
        wire: int = -1,
    ) -> Any:
        """Reduce into a new tensor; `wire` is the number of the dtype that it travels as, -1 for its own."""
        ctx.reduction = (op, factors, process_set, wire)
        return at_once(asynchronous.start_allreduce, tensor, name, make_reduction(None, *ctx.reduction))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Reduce the gradient in the same way."""
        return HorovodAllreduce.apply(grads[0], None, *ctx.reduction), *[None] * 5  # type: ignore[no-untyped-call]


class HorovodGroupedAllreduce(Function):
    """Group of allreduces; its gradients are reduced as a group again."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        factors: tuple[float, float],
        process_set: ProcessSet,
        wire: int,
        *tensors: torch.Tensor,
    ) -> Any:
        """Reduce into new tensors."""
        ctx.reduction = (op, factors, process_set, wire)
        return tuple(at_once(asynchronous.start_group, tensors, name, make_reduction(None, *ctx.reduction)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Reduce the gradients in the same way."""
        return *[None] * 5, *HorovodGroupedAllreduce.apply(None, *ctx.reduction, *grads)  # type: ignore[no-untyped-call]


class HorovodAllgather(Function):
    """Allgather; its gradient is this rank's slice of the averaged gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Any:
        """Concatenate the ranks' tensors."""
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        return at_once(asynchronous.allgather_async, tensor, name, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Average the gradient and cut out this rank's rows."""
        return _own_rows(grads[0], ctx.rows, ctx.process_set), None, None


class HorovodGroupedAllgather(Function):
    """Several allgathers; gradients as in `HorovodAllgather`."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        """Concatenate the ranks' tensors."""
        ctx.rows, ctx.process_set = [tensor.shape[0] for tensor in tensors], process_set
        return at_once(asynchronous.grouped_allgather_async, tensors, name, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Average the gradients and cut out this rank's rows."""
        own = [_own_rows(grad, rows, ctx.process_set) for grad, rows in zip(grads, ctx.rows, strict=True)]
        return None, None, *own


class HorovodBroadcast(Function):
    """Broadcast; its gradient arrives, averaged, at the root."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        """Send the root's tensor into a new tensor."""
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return at_once(asynchronous.broadcast_async, tensor, root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Average the gradient; zero where this rank is not the root."""
        reduced = allreduce(grads[0], op=Average, process_set=ctx.process_set)
        grad = reduced if session.require().rank == ctx.root_rank else torch.zeros_like(reduced)
        return grad, None, None, None


_SMALL_BYTES = 1 << 16


def _is_small(tensor: torch.Tensor) -> bool:
    dense = tensor.is_cpu and tensor.layout is torch.strided and asynchronous.is_plain(tensor)
    return dense and tensor.nbytes <= _SMALL_BYTES


def flows_back(*tensors: torch.Tensor) -> bool:
    """Return whether a gradient may flow through; else autograd is left out, which costs more than the collective."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


@persistent.blocking("allreduce")
@checked
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Chosen = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce the tensor over all ranks and return a new tensor; differentiable.

    Args:
        tensor: This rank's contribution; same shape and dtype on all ranks.
        average: Deprecated, use ``op``.
        name: Name by which ranks match the operation; counted if missing.
        compression: How the tensor travels.
        op: ``Average`` (default), ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``.
        prescale_factor: Multiplies each contribution.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Raises:
        InvalidArgument: The operation is invalid on this rank.
        RuntimeFailure: It failed on all ranks; the message names it.
    """
    given = None, average, None, compression, op, prescale_factor, postscale_factor, process_set
    op = resolve_op(average, op)
    small, wire, decompress = to_travel(tensor, compression, op)
    reduction = (op, (prescale_factor, postscale_factor), process_set, wire)
    if flows_back(small):
        reduced = HorovodAllreduce.apply(small, name, *reduction)  # type: ignore[no-untyped-call]
    elif name is not None and wire == -1 and _is_small(small):  # a copy is cheaper than the path with a new result
        copy = small.clone(memory_format=torch.contiguous_format)
        reduced = asynchronous.allreduce_(copy, None, name, op, prescale_factor, postscale_factor, process_set)
    else:
        reduced = at_once(asynchronous.start_allreduce, small, name, make_reduction(None, *reduction))
    as_it_is = wire != -1 or compression is Compression.none  # Python neither compresses nor decompresses it
    if as_it_is and not reduced.requires_grad:
        numbers = asynchronous.collective_params(small, make_reduction(None, *reduction))
        handles.remember("allreduce", (name, small), numbers, given, reduced)
    return decompress(reduced)


@checked
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Chosen = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors as one group and return the list of results; differentiable. See `allreduce`."""
    op = resolve_op(average, op)
    compressed = [to_travel(tensor, compression, op) for tensor in tensors]
    factors = (prescale_factor, postscale_factor)
    wire = compressed[0].wire if compressed else -1
    reduced = HorovodGroupedAllreduce.apply(  # type: ignore[no-untyped-call]
        name, op, factors, process_set, wire, *(one.tensor for one in compressed)
    )
    return [one.decompress(result) for result, one in zip(reduced, compressed, strict=True)]


@persistent.blocking("allgather")
@checked
def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Concatenate the ranks' tensors along the first dimension, which may differ per rank; differentiable.

    Args:
        tensor: This rank's rows.
        name: Name by which ranks match the operation; counted if missing.
        process_set: The ranks that take part.
        out: Where the result goes, which no gradient flows through then; a new tensor if missing. Not in Horovod.

    Raises:
        IndexError: The tensor has no dimension.
        InvalidArgument: ``out`` is of another shape or dtype, or a gradient flows.
    """
    handles.check_out(out, flows_back=flows_back(tensor))
    if tensor.dim() == 0:
        raise IndexError("allgather of a tensor without dimension: it needs at least one to join along")
    if not flows_back(tensor):
        gathered: torch.Tensor = at_once(asynchronous.allgather_async, tensor, name, process_set)
        params = persistent.CollectiveParams(
            persistent.Kind.ALLGATHER, 0, handles.DTYPES[tensor.dtype], process_set=number_of(process_set)
        )
        handles.remember("allgather", (name, tensor), params, (None, None, process_set, None), gathered)
        return handles.into(gathered, out)
    result: torch.Tensor = HorovodAllgather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]
    return result


@checked
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[torch.Tensor, ...]:
    """Do several allgathers and return the tuple of results; differentiable. See `allgather`."""
    result: tuple[torch.Tensor, ...] = HorovodGroupedAllgather.apply(name, process_set, *tensors)  # type: ignore[no-untyped-call]
    return result


@persistent.blocking("broadcast")
@checked
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return a copy of the root's tensor; differentiable.

    Raises:
        InvalidArgument: There is no such root.
    """
    if not flows_back(tensor):
        received: torch.Tensor = at_once(asynchronous.broadcast_async, tensor, root_rank, name, process_set)
        asynchronous.remember_broadcast("broadcast", tensor, (root_rank, name, process_set), received)
        return received
    result: torch.Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result


def _own_rows(grad: torch.Tensor, rows: int, process_set: ProcessSet) -> torch.Tensor:
    """Average a gradient of a concatenation over ranks and return the rows that came from this rank."""
    counts = allgather(torch.tensor([rows], dtype=torch.int64), process_set=process_set)
    begin = int(counts[: process_set.rank()].sum())
    return allreduce(grad, op=Average, process_set=process_set)[begin : begin + rows]
