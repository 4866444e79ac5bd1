"""Operations on tensors that are under way in the native runtime, and their handles.

What arrives in a scratch buffer is copied to where it belongs when a handle is synchronised.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from ringtune import session
from ringtune.common import process_sets
from ringtune.common.dtypes import NUMBERS, check_reduced
from ringtune.common.handles import Handles
from ringtune.common.handles import Pending as Pending
from ringtune.common.process_sets import wire_name as wire_name
from ringtune.common.reductions import Reduction as Reduction
from ringtune.errors import InvalidArgument
from ringtune.operations import Allgather, Allreduce, Broadcast, Reducescatter
from ringtune.torch import devices, persistent
from ringtune.torch.memory_check import check_target, check_tensor, contents, is_own

DTYPES: dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in NUMBERS.items() if hasattr(torch, name)
}
"""Numbers of ``native/base/dtype.h``; torch before 2.3 has no uint16, uint32 and uint64."""

_contiguous_like = functools.partial(torch.empty_like, memory_format=torch.contiguous_format)

REUSED_BYTES = 1 << 20
"""Results of this size and more lie in memory that is reused."""

_handles = Handles(persistent.pending)
at_once, register = _handles.at_once, _handles.register


def reset() -> None:
    """Forget all handles and start counting unnamed operations anew; all ranks do so at ``init``."""
    persistent.reset()
    process_sets.unnamed.clear()


def dtype_number(tensor: torch.Tensor, what: str = "tensor", *, reduces: bool = False) -> int:
    """Return the runtime's number of the tensor's dtype.

    Args:
        tensor: Any value.
        what: What it is, for messages: function and argument.
        reduces: It is to be reduced, not only moved.

    Raises:
        InvalidArgument: The tensor's values are not in memory (`ringtune.torch.memory_check`), it is of a dtype that
            cannot be reduced, or neither on the CPU nor on a GPU.
    """
    check_tensor(tensor, what)
    if not tensor.is_cpu and not tensor.is_cuda:
        raise InvalidArgument(
            f"{what} of shape {list(tensor.shape)} is on {tensor.device}: only tensors on the CPU and on CUDA devices "
            "are reduced; move the tensor to the CPU first (tensor.cpu())"
        )
    number = DTYPES.get(tensor.dtype)
    if number is None:
        raise InvalidArgument(
            f"{what}: Tensor type {tensor.type()} is not supported; supported: "
            f"{', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)}"
        )
    if reduces:
        check_reduced(str(tensor.dtype).removeprefix("torch."), what)
    return number


def _memory_of(tensor: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return contiguous memory that holds a tensor's values, and such memory for the output: `settle` copies it there.

    Raises:
        InvalidArgument: The output cannot be written into.
    """
    source = contents(tensor)
    check_target(output, "the tensor to write into")
    if output is tensor:
        return source, source
    return source, output if is_own(output) else torch.empty_like(source)


def make_allreduce(
    tensor: torch.Tensor, output: torch.Tensor, name: str, reduction: Reduction
) -> tuple[Allreduce, list[Any]]:
    """Describe an allreduce of any strided tensor.

    Args:
        tensor: What this rank contributes.
        output: Where the result goes; may be the tensor itself.
        name: On the wire.
        reduction: Operation, factors and ranks.

    Returns:
        The operation, and what must be kept; `settle` moves a result that lies in scratch memory.
    """
    number = dtype_number(tensor, reduces=True)
    source, target = _memory_of(tensor, output)
    operation = Allreduce(
        name, source.data_ptr(), target.data_ptr(), tuple(tensor.shape), number, *reduction[:3],
        process_set=reduction.process_set, wire=reduction.wire, device=devices.device_of(source),
    )  # fmt: skip
    return operation, [source, target, output]


def start_allreduce(
    tensor: torch.Tensor, output: torch.Tensor, name: str, reduction: Reduction
) -> tuple[int, list[Any]]:
    """Submit an allreduce; returns its ticket, and what must be kept, as `make_allreduce`."""
    operation, kept = make_allreduce(tensor, output, name, reduction)
    return session.require().submit(operation), kept


def start_broadcast(
    tensor: torch.Tensor, output: torch.Tensor, root: int, name: str, process_set: int
) -> tuple[int, list[Any]]:
    """Submit a broadcast of any strided tensor from a global rank; see `start_allreduce`."""
    number = dtype_number(tensor)
    source, target = _memory_of(tensor, output)
    operation = Broadcast(
        name, source.data_ptr(), target.data_ptr(), tuple(tensor.shape), number, root, process_set,
        devices.device_of(source),
    )  # fmt: skip
    ticket = session.require().submit(operation)
    return ticket, [source, target, output]


def start_allgather(tensor: torch.Tensor, name: str, process_set: int) -> tuple[int, list[Any]]:
    """Submit an allgather of any strided tensor along its first dimension."""
    number = dtype_number(tensor)
    source = contents(tensor)
    device = devices.device_of(source)
    operation = Allgather(name, source.data_ptr(), tuple(tensor.shape), number, process_set, device)
    ticket = session.require().submit(operation)
    return ticket, [source]


def register_one(ticket: int, kept: list[Any]) -> int:
    """Enter a started operation and return its handle; `settle` makes the result."""
    return register(Pending([ticket], lambda: settle(ticket, kept), kept))


def start_group(name: str, made: Sequence[tuple[Allreduce | Reducescatter, list[Any]]]) -> int:
    """Submit operations as a group and return their one handle."""
    keep = [kept for _, kept in made]
    tickets = session.require().submit_group(name, [operation for operation, _ in made])
    return register(Pending(tickets, lambda: [settle(*one) for one in zip(tickets, keep, strict=True)], keep))


def settle(ticket: int, kept: list[Any]) -> torch.Tensor:
    """Return the output of a finished operation, copying it out of scratch memory if it lies there."""
    source, target, output = kept
    devices.join(ticket, target, source)
    if target is not output:
        with torch.no_grad():
            output.copy_(target)
    result: torch.Tensor = output
    return result


def gathered(ticket: int, dtype: torch.dtype, sent: torch.Tensor | None = None) -> torch.Tensor:
    """Return the result of a finished allgather or alltoall as a tensor that owns its memory, where what was sent is.

    Args:
        ticket: Of the operation.
        dtype: Of the elements.
        sent: The memory that was submitted; none: on the CPU.
    """
    if sent is not None and not sent.is_cpu:
        return devices.deliver(ticket, dtype, sent)
    shape, buffer = session.require().take_gathered(ticket)
    return torch.empty(shape, dtype=dtype) if 0 in shape else _adopt(buffer, shape, dtype)


def new_result(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return contiguous memory, not initialised, for a result of a tensor's dtype, where the tensor is.

    On the CPU a large one lies in memory that earlier results of about the size have left: fresh pages would cost
    more than the collective.
    """
    if like.is_cpu:
        count = math.prod(shape) * like.element_size()
        if count >= REUSED_BYTES:
            return _adopt(session.require().result_memory(count), shape, like.dtype)
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _adopt(buffer: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that owns a buffer of bytes, not empty; no view, so that it may be changed in place where
    gradients flow.
    """
    return torch.frombuffer(buffer, dtype=dtype).resize_(tuple(shape))


def result_factory_of(result: torch.Tensor, *, gathers: bool = False) -> persistent.ResultFactory:
    """Return how results like this one are made, for the fast path."""
    shape = tuple(result.shape)
    if result.nbytes >= REUSED_BYTES:
        return persistent.ResultFactory(_large_like, (result.nbytes, shape, result.dtype), gathers, shape)
    # The sample owns no memory, since it lives as long as cached calls.
    pattern = torch.empty((), dtype=result.dtype, device=result.device).expand(result.shape)
    # An expanded sample would pass on its stride of 0 where a dimension is 1.
    return persistent.ResultFactory(_contiguous_like if 1 in shape else torch.empty_like, pattern, gathers, shape)


def remember(
    family: str,
    called: tuple[str | None, torch.Tensor],
    params: persistent.CollectiveParams,
    given: tuple[Any, ...],
    result: torch.Tensor,
) -> None:
    """Make a collective persistent if its name and tensor qualify.

    Args:
        family: As given to the decorator of `ringtune.torch.persistent`.
        called: The name as the caller gave it, and the tensor.
        params: Parameters of the collective.
        given: The arguments as the caller wrote them, by position.
        result: Of this call; the tensor itself for a collective in place.
    """
    name, tensor = called
    if not persistent.takes(name, tensor) or result.numel() == 0:
        return
    result_factory = (
        None
        if result is tensor
        else result_factory_of(result, gathers=params.kind in (persistent.Kind.ALLGATHER, persistent.Kind.ALLTOALL))
    )
    wire = wire_name(persistent.NAMES[params.kind], name, params.process_set)
    persistent.remember(persistent.Call(family, name, [tensor], given), [wire], [params], result_factory)


def _large_like(what: tuple[int, tuple[int, ...], torch.dtype]) -> torch.Tensor:
    count, shape, dtype = what
    return _adopt(session.require().result_memory(count), shape, dtype)


def into(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Return a result in the tensor that the caller has given for it, if any.

    Raises:
        InvalidArgument: The result is of another shape or dtype. It is lost then, on this rank alone.
    """
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype:
        raise InvalidArgument(
            f"out is of shape {list(out.shape)} and {out.dtype}, the result of {list(result.shape)} and {result.dtype}"
        )
    return out.copy_(result)


def check_out(out: torch.Tensor | None, *, flows_back: bool) -> None:
    """Refuse to write a result into a tensor of the caller's where a gradient flows.

    Raises:
        InvalidArgument: It does.
    """
    if out is not None and (flows_back or out.requires_grad):
        raise InvalidArgument("out= does not support gradients: call without it, or under torch.no_grad()")


def poll(handle: int) -> bool:
    """Return whether the operation is done, so that `synchronize` would not wait.

    Raises:
        InvalidArgument: The handle is unknown or has been synchronised already.
    """
    return _handles.poll(handle)


@persistent.waiting
def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; Ctrl-C interrupts the wait.

    Returns:
        The output tensor; for a group all outputs.

    Raises:
        InvalidArgument: The handle is unknown or has been synchronised already.
        RuntimeFailure: The operation failed; it is named in the message.
    """
    return _handles.synchronize(handle)


_handles.wait = synchronize


@persistent.settling
def settle_result(ticket: int, output: torch.Tensor | None, gathers: bool, given: bool) -> torch.Tensor | None:
    """Return the result of a finished operation that the fast path has begun.

    Args:
        ticket: Of the operation.
        output: Where the result was to go; None for a collective without.
        gathers: How large the result is depends on the other ranks: it may lie elsewhere.
        given: The output is the caller's.
    """
    if output is None or not gathers:
        return output
    shape, buffer = session.require().take_gathered(ticket)
    if 0 not in shape and len(buffer) == 0:
        return output
    result = output.new_empty(shape) if 0 in shape else _adopt(buffer, shape, output.dtype)
    return into(result, output) if given else result
