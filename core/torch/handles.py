"""Handles: operations on tensors that are under way in the native runtime.

A handle is the ticket of the operation (of a group: of its first member). The table keeps every buffer alive until
`synchronize`; what arrives in a scratch buffer is copied to where it belongs there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ringtune import native, session
from ringtune.common import process_sets
from ringtune.errors import InvalidArgument, RingtuneError
from ringtune.operations import Allreduce, Broadcast

_ADASUM = 2  # of ringtune.torch.arguments, which builds on this module

DTYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.bfloat16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bool: 9,
}
"""Numbers of ``native/base/dtype.h``."""


@dataclass(frozen=True)
class Reduction:
    """How a reduction combines: operation number, factors before and after, and the ranks that take part.

    Floating tensors travel as the dtype of number ``wire``; -1: as they are.
    """

    op: int
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0
    wire: int = -1


@dataclass
class Pending:
    """What belongs to a handle.

    Attributes:
        tickets: Tickets of its operations.
        finish: Makes the result when all are done.
        keep: Buffers the runtime reads or writes.
    """

    tickets: list[int]
    finish: Callable[[], Any]
    keep: list[Any] = field(default_factory=list)


class Repeated:
    """An allreduce in place as it was called last under its name, and the short way to call it again.

    Attributes:
        now: ``now(input, output, timeout_ns)`` blocks: 0, or the ticket of an operation that goes on.
        submit: ``submit(input, output)``: a ticket.
        error: Base of what the two raise.
    """

    __slots__ = ("_dtype", "_op", "_postscale", "_prescale", "_set", "_shape", "error", "now", "submit")

    def __init__(self, tensor: torch.Tensor, words: tuple[int | None, float, float, Any], call: Any) -> None:
        self._dtype, self._shape = tensor.dtype, tensor.shape
        self._op, self._prescale, self._postscale, self._set = words
        self.now, self.submit = call.now, call.submit
        self.error = native.error_class()

    def fits(self, tensor: torch.Tensor, op: int | None, prescale: float, postscale: float, process_set: Any) -> bool:
        """Return whether a call is the same again; the cheapest look at everything that could differ."""
        return (
            tensor.dtype is self._dtype
            and tensor.shape == self._shape
            and op == self._op
            and prescale == self._prescale
            and postscale == self._postscale
            and process_set is self._set
            and tensor.is_cpu
            and tensor.is_contiguous()
        )


repeated: dict[str | None, Repeated] = {}
"""By the name that the caller gave."""

_MOST_REPEATED = 65536


def remember(
    tensor: torch.Tensor,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: Any,
    how: Any,
) -> None:
    """Prepare the short way for the next call under this name."""
    if name is None or how.op == _ADASUM or not tensor.is_contiguous() or len(repeated) >= _MOST_REPEATED:
        return
    words = (DTYPES[tensor.dtype], how.op, how.prescale, how.postscale, how.process_set)
    wire = wire_name("allreduce", name, how.process_set)
    call = session.require().runtime.repeated_allreduce(wire, list(tensor.shape), words)
    repeated[name] = Repeated(tensor, (op, prescale, postscale, process_set), call)


_pending: dict[int, Pending | torch.Tensor] = {}


def reset() -> None:
    """Forget all handles and start counting unnamed operations anew; all ranks do so at ``init``."""
    repeated.clear()
    _pending.clear()
    process_sets.unnamed.clear()


def wire_name(kind: str, name: str | None, process_set: int = 0) -> str:
    """Return the name under which ranks match an operation: ``<kind>.<name>``, with the set unless it is that of all.

    Unnamed operations are counted per set and kind, so that what only some ranks run cannot bring others out of step.
    """
    if name is None:
        count = process_sets.unnamed.get((process_set, kind), 0) + 1
        process_sets.unnamed[process_set, kind] = count
        name = f"noname.{count}"
    return f"{kind}.{name}@set{process_set}" if process_set else f"{kind}.{name}"


def dtype_number(tensor: torch.Tensor) -> int:
    """Return the runtime's number of the tensor's dtype.

    Raises:
        InvalidArgument: The tensor is not dense, not in the CPU's memory, or of a dtype that cannot be reduced.
    """
    if not tensor.is_cpu:
        raise InvalidArgument(
            f"tensor of shape {list(tensor.shape)} is on {tensor.device}: CUDA tensors come with the GPU runtime, "
            "which this version does not have; move the tensor to the CPU first (tensor.cpu())"
        )
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"tensor of layout {tensor.layout}: use sparse_allreduce_async, or tensor.to_dense()")
    number = DTYPES.get(tensor.dtype)
    if number is None:
        raise InvalidArgument(
            f"Tensor type {tensor.type()} is not supported; supported: "
            f"{', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)}"
        )
    return number


def start_allreduce(tensor: torch.Tensor, output: torch.Tensor, operation: Allreduce) -> tuple[int, list[Any]]:
    """Submit an allreduce of any strided tensor.

    Args:
        tensor: What this rank contributes.
        output: Where the result goes; may be the tensor itself.
        operation: Name, reduction and group; addresses, shape and dtype are filled in here.

    Returns:
        Ticket, and what must be kept; `settle` moves a result that lies in scratch memory.
    """
    number = dtype_number(tensor)
    source = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    target = output if output.is_contiguous() else source if output is tensor else torch.empty_like(source)
    o = operation
    ticket = session.require().submit_allreduce(
        Allreduce(
            o.name,
            source.data_ptr(),
            target.data_ptr(),
            tuple(tensor.shape),
            number,
            o.op,
            o.prescale,
            o.postscale,
            o.group,
            o.group_size,
            o.process_set,
            o.wire,
        )
    )
    return ticket, [source, target, output]


def start_broadcast(
    tensor: torch.Tensor, output: torch.Tensor, root: int, name: str, process_set: int
) -> tuple[int, list[Any]]:
    """Submit a broadcast of any strided tensor from a global rank; see `start_allreduce`."""
    number = dtype_number(tensor)
    source = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    target = output if output.is_contiguous() else source if output is tensor else torch.empty_like(source)
    ticket = session.require().submit_broadcast(
        Broadcast(name, source.data_ptr(), target.data_ptr(), tuple(tensor.shape), number, root, process_set)
    )
    return ticket, [source, target, output]


def start_allgather(tensor: torch.Tensor, name: str, process_set: int) -> tuple[int, list[Any]]:
    """Submit an allgather of any strided tensor along its first dimension."""
    number = dtype_number(tensor)
    source = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    ticket = session.require().submit_allgather(name, source.data_ptr(), tuple(tensor.shape), number, process_set)
    return ticket, [source]


def settle(kept: list[Any]) -> torch.Tensor:
    """Return the output of a finished operation, copying it out of scratch memory if it lies there."""
    _, target, output = kept
    if target is not output:
        with torch.no_grad():
            output.copy_(target)
    result: torch.Tensor = output
    return result


def gathered(ticket: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the result of a finished allgather or alltoall as a tensor that owns its memory."""
    shape, buffer = session.require().take_gathered(ticket)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).view(shape)


def enter(ticket: int, tensor: torch.Tensor) -> int:
    """Enter an operation whose result is the tensor itself; return its handle."""
    _pending[ticket] = tensor
    return ticket


def register(pending: Pending) -> int:
    """Enter an operation into the table and return its handle."""
    handle = pending.tickets[0]
    _pending[handle] = pending
    return handle


def poll(handle: int) -> bool:
    """Return whether the operation is done, so that `synchronize` would not wait.

    Raises:
        InvalidArgument: The handle is unknown or has been synchronised already.
    """
    found = _find(handle)
    tickets = [handle] if isinstance(found, torch.Tensor) else found.tickets
    now = session.require()
    return all(now.poll(ticket) for ticket in tickets)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; Ctrl-C interrupts the wait.

    Returns:
        The output tensor; for a group all outputs.

    Raises:
        InvalidArgument: The handle is unknown or has been synchronised already.
        RuntimeFailure: The operation failed; it is named in the message.
    """
    pending = _find(handle)
    if isinstance(pending, torch.Tensor):
        return _finish_in_place(handle, pending)
    failure = wait_all(pending.tickets)
    del _pending[handle]
    try:
        if failure is not None:
            raise failure
        return pending.finish()
    finally:
        release_all(pending.tickets)


def wait_all(tickets: list[int]) -> RingtuneError | None:
    """Wait for every ticket, whatever becomes of the others, and return the first failure."""
    now = session.require()
    failure: RingtuneError | None = None
    for ticket in tickets:
        try:
            now.wait(ticket)
        except RingtuneError as error:
            failure = failure or error
    return failure


def release_all(tickets: list[int]) -> None:
    """Let the runtime forget finished operations."""
    now = session.state.current
    if now is not None:
        for ticket in tickets:
            now.release(ticket)


def _finish_in_place(handle: int, tensor: torch.Tensor) -> torch.Tensor:
    finish, base = session.require().runtime.finish, native.error_class()
    try:
        while not finish(handle, session.WAIT_SLICE_NS):
            pass
    except base as error:
        del _pending[handle]
        raise native.translate(error) from None
    del _pending[handle]
    return tensor


def _find(handle: int) -> Pending | torch.Tensor:
    pending = _pending.get(handle)
    if pending is None:
        raise InvalidArgument(f"Handle {handle} was not created or has been cleared.")
    return pending
