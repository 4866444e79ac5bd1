"""Horovod's collectives on torch tensors: the asynchronous and in-place forms, which no gradient flows through.

Every asynchronous form returns a handle for `synchronize` and `poll`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch

from ringtune import session
from ringtune.common import process_sets
from ringtune.common.process_sets import (
    ProcessSet,
    global_process_set,
    number_of,
    number_with_root,
)
from ringtune.errors import HorovodInternalError, InvalidArgument
from ringtune.operations import Barrier, group_names
from ringtune.torch import handles, persistent
from ringtune.torch.arguments import Average, make_reduction, resolve_op
from ringtune.torch.checked_calls import check_sparse, checked, checked_with
from ringtune.torch.handles import Pending, Reduction, at_once, synchronize


@checked
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a reduction of the tensor over all ranks into a new tensor.

    Args:
        tensor: This rank's contribution; same shape and dtype on all ranks.
        average: Deprecated, use ``op``.
        name: Name by which ranks match the operation; counted if missing.
        op: ``Average`` (default), ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``.
        prescale_factor: Multiplies each contribution.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        Handle for `synchronize`, which returns the result.

    Raises:
        InvalidArgument: The operation is invalid on this rank, or its name is in flight.
        NotInitialized: Before ``init()``.
    """
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    return start_allreduce(tensor, name, reduction)


@persistent.submitting("allreduce_")
@checked
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a reduction in place; arguments as in `allreduce_async`."""
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    handle = _start_allreduce(tensor, tensor, name, reduction)
    if average is None:
        given = None, None, None, op, prescale_factor, postscale_factor, process_set
        handles.remember("allreduce_", (name, tensor), collective_params(tensor, reduction), given, tensor)
    return handle


@persistent.blocking("allreduce_")
@checked
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce in place and return the tensor; arguments as in `allreduce_async`."""
    result: torch.Tensor = at_once(
        allreduce_async_, tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return result


@checked
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reductions of several tensors that run only when all of them are ready on all ranks.

    Returns:
        One handle; `synchronize` returns the list of results.
    """
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    return start_group(tensors, name, reduction)


@persistent.submitting_group("grouped_allreduce_")
@checked
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a group of reductions in place; `synchronize` returns the tuple of tensors."""
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    handle = _start_group(tensors, tensors, name, reduction)
    if type(name) is str and average is None:
        given = None, None, None, op, prescale_factor, postscale_factor, process_set
        base = handles.wire_name("grouped_allreduce", name, reduction.process_set)
        wires, params = group_names(base, len(tensors)), [collective_params(tensor, reduction) for tensor in tensors]
        call = persistent.Call("grouped_allreduce_", name, list(tensors), given)
        persistent.remember(call, wires, params, group=base)
    return handle


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Reduce a group in place and return the tuple of tensors."""
    return tuple(
        at_once(grouped_allreduce_async_, tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )


@checked_with(tensor=check_sparse)
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start a reduction of a sparse COO tensor: indices and values of all ranks are gathered.

    Returns:
        A function that waits and returns the uncoalesced result; with ``Average`` values are divided by the size.
    """
    op = resolve_op(None, op)
    indices = tensor._indices().transpose(0, 1).contiguous()
    gather_indices = allgather_async(indices, f"{name}.indices", process_set)
    gather_values = allgather_async(tensor._values(), f"{name}.values", process_set)
    size = process_set.size() or 1

    def wait() -> torch.Tensor:
        found: torch.Tensor = synchronize(gather_indices)
        values: torch.Tensor = synchronize(gather_values)
        if op == Average:
            values = values / size
        return torch.sparse_coo_tensor(found.transpose(0, 1), values, tensor.size(), check_invariants=False)

    return wait


@checked
def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start concatenating the ranks' tensors along the first dimension, which may differ per rank.

    Returns:
        Handle for `synchronize`, which returns the concatenation in order of ranks.

    Raises:
        HorovodInternalError: The tensor has no dimension.
    """
    return _start_allgather([tensor], "allgather", name, number_of(process_set))


@checked
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start several allgathers under one handle; `synchronize` returns the tuple of results."""
    return _start_allgather(tensors, "grouped_allgather", name, number_of(process_set))


@checked
def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast of the root's tensor into a new tensor.

    Args:
        tensor: On the root what is sent; elsewhere gives shape and dtype, which must agree.
        root_rank: Rank that sends.
        name: Name by which ranks match the operation; counted if missing.
        process_set: The ranks that take part.

    Raises:
        InvalidArgument: There is no such root.
    """
    return _start_broadcast(tensor, _like(tensor), root_rank, (name, process_set))


@checked
def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast in place; arguments as in `broadcast_async`."""
    return _start_broadcast(tensor, tensor, root_rank, (name, process_set))


@persistent.blocking("broadcast_")
@checked
def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Broadcast in place and return the tensor; arguments as in `broadcast_async`."""
    result: torch.Tensor = at_once(_start_broadcast, tensor, tensor, root_rank, (name, process_set))
    remember_broadcast("broadcast_", tensor, (root_rank, name, process_set), result)
    return result


def remember_broadcast(
    family: str, tensor: torch.Tensor, given: tuple[int, str | None, ProcessSet], result: torch.Tensor
) -> None:
    """Make a broadcast persistent like the one that was given `(root_rank, name, process_set)`."""
    name, process_set = given[1:]
    root = operator.index(given[0])
    dtype = handles.DTYPES[tensor.dtype]
    params = persistent.CollectiveParams(persistent.Kind.BROADCAST, root, dtype, process_set=number_of(process_set))
    handles.remember(family, (name, tensor), params, (None, *given), result)


@persistent.blocking("barrier")
@checked
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have reached this point."""
    number = number_of(process_set)
    at_once(_start_barrier, number)
    params = persistent.CollectiveParams(persistent.Kind.BARRIER, 0, 0, process_set=number)
    persistent.remember(persistent.Call("barrier", None, (), (process_set,)), [_barrier_name(number)], [params])


@checked
def join(device: int = -1) -> int:
    """Wait until all ranks have reached this point; meanwhile contribute neutral elements to what the others reduce.

    Unnamed operations are counted anew afterwards, so that a rank that ran fewer of them is in step again.

    Args:
        device: Accepted for Horovod's sake.

    Returns:
        The global rank that came last, the same on all ranks.
    """
    del device
    return process_sets.join()


def collective_params(tensor: torch.Tensor, reduction: Reduction) -> persistent.CollectiveParams:
    """Return the parameters of an allreduce for the fast path."""
    dtype = handles.DTYPES[tensor.dtype]
    return persistent.CollectiveParams(persistent.Kind.ALLREDUCE, 0, dtype, *reduction)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one of torch's own classes."""
    return type(tensor) in persistent.PLAIN


def start_allreduce(tensor: torch.Tensor, name: str | None, reduction: Reduction) -> int:
    """Start a reduction into a new tensor."""
    return _start_allreduce(tensor, _like(tensor), name, reduction)


def start_group(tensors: Sequence[torch.Tensor], name: str | None, reduction: Reduction) -> int:
    """Start a group of reductions into new tensors."""
    return _start_group(tensors, [_like(tensor) for tensor in tensors], name, reduction)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Return contiguous memory for a result."""
    handles.dtype_number(tensor)  # raises for sparse and other unsupported layouts
    if is_plain(tensor) and tensor.nbytes < handles.REUSED_BYTES:
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)
    return handles.new_result(tensor, tensor.shape)


def _start_allreduce(tensor: torch.Tensor, output: torch.Tensor, name: str | None, reduction: Reduction) -> int:
    wire = handles.wire_name("allreduce", name, reduction.process_set)
    return handles.register_one(*handles.start_allreduce(tensor, output, wire, reduction))


def _start_group(
    tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], name: str | None, reduction: Reduction
) -> int:
    if not tensors:
        raise InvalidArgument("grouped_allreduce: got no tensors, expected at least one")
    made = [handles.make_allreduce(*both, "", reduction) for both in zip(tensors, outputs, strict=True)]
    return handles.start_group(handles.wire_name("grouped_allreduce", name, reduction.process_set), made)


def _start_allgather(tensors: Sequence[torch.Tensor], kind: str, name: str | None, process_set: int) -> int:
    single = kind == "allgather"
    if not tensors:
        raise InvalidArgument("grouped_allgather: got no tensors, expected at least one")
    for tensor in tensors:
        handles.dtype_number(tensor)
        if tensor.dim() == 0:
            raise HorovodInternalError(f"tensor '{name}' has no dimension: {kind} needs at least one to join along")
    base = handles.wire_name(kind, name, process_set)
    names = [base] if single else group_names(base, len(tensors))
    started = [handles.start_allgather(tensor, one, process_set) for tensor, one in zip(tensors, names, strict=True)]
    tickets = [ticket for ticket, _ in started]
    kinds = [tensor.dtype for tensor in tensors]

    def finish() -> torch.Tensor | tuple[torch.Tensor, ...]:
        results = [
            handles.gathered(ticket, dtype, kept[0]) for (ticket, kept), dtype in zip(started, kinds, strict=True)
        ]
        return results[0] if single else tuple(results)

    return handles.register(Pending(tickets, finish, [kept for _, kept in started]))


def _barrier_name(process_set: int) -> str:
    return handles.wire_name("barrier", "noname", process_set)


def _start_barrier(process_set: int) -> int:
    ticket = session.require().submit(Barrier(_barrier_name(process_set), process_set))
    return handles.register(Pending([ticket], lambda: None))


def _start_broadcast(
    tensor: torch.Tensor, output: torch.Tensor, root: int, where: tuple[str | None, ProcessSet]
) -> int:
    """Start a broadcast; `where` is its name and the ranks that take part."""
    name, process_set = where
    root, number = operator.index(root), number_with_root(process_set, root)
    wire = handles.wire_name("broadcast", name, number)
    return handles.register_one(*handles.start_broadcast(tensor, output, root, wire, number))
