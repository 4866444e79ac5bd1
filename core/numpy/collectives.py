"""Horovod's collectives on NumPy arrays, and on arrays in GPUs' memory (CuPy) alike.

Every asynchronous form returns a handle for `synchronize` and `poll`; forms that end in an underscore replace the
values of their array. Any strides and either byte order are taken; results have the order of the machine.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from ringtune import session
from ringtune.common.handles import Handles, Pending
from ringtune.common.process_sets import (
    ProcessSet,
    global_process_set,
    number_of,
    number_with_root,
    own_rows,
    wire_name,
)
from ringtune.common.reductions import Average, Reduction, Sum, make_reduction, resolve_op
from ringtune.errors import HorovodInternalError, InvalidArgument
from ringtune.numpy.arrays import (
    Array,
    Buffers,
    address,
    device_of,
    gathered,
    in_place,
    join,
    like,
    number_of_dtype,
    out_of_place,
    readable,
    received_splits,
)
from ringtune.numpy.checked_calls import checked
from ringtune.operations import Allgather, Allreduce, Alltoall, Broadcast, Reducescatter

handles = Handles()
poll, synchronize, at_once, register = handles.poll, handles.synchronize, handles.at_once, handles.register


@checked
def allreduce_async(
    array: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a reduction of the array over all ranks into a new array.

    Args:
        array: This rank's contribution; same shape and dtype on all ranks.
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
    return _start(out_of_place(array, "allreduce"), name, reduction)


@checked
def allreduce_async_(
    array: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a reduction in place; arguments as in `allreduce_async`."""
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    return _start(in_place(array, "allreduce_"), name, reduction)


@checked
def allreduce(
    array: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce into a new array and return it; arguments as in `allreduce_async`."""
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    result: Array = at_once(_start, out_of_place(array, "allreduce"), name, reduction)
    return result


@checked
def allreduce_(
    array: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce in place and return the array; arguments as in `allreduce_async`."""
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    result: Array = at_once(_start, in_place(array, "allreduce_"), name, reduction)
    return result


@checked
def grouped_allreduce(
    arrays: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce several arrays, together when all of them are ready on all ranks, and return new ones."""
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    return _group([out_of_place(array, "grouped_allreduce") for array in arrays], name, reduction)


@checked
def grouped_allreduce_(
    arrays: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce several arrays in place, together when all of them are ready on all ranks, and return them."""
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    return _group([in_place(array, "grouped_allreduce_") for array in arrays], name, reduction)


@checked
def allgather_async(array: Array, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start joining the arrays of all ranks along their first dimension, which may differ between ranks.

    Returns:
        Handle for `synchronize`, which returns the joined array.

    Raises:
        InvalidArgument: The operation is invalid on this rank, or its name is in flight.
        HorovodInternalError: The array has no dimension.
    """
    number, dtype = number_of(process_set), number_of_dtype(array, "allgather")
    if array.ndim == 0:
        raise HorovodInternalError(f"array '{name}' has no dimension: allgather needs at least one to join along")
    source = readable(array)
    wire = wire_name("allgather", name, number)
    operation = Allgather(wire, address(source), array.shape, dtype, number, device_of(source))
    ticket = session.require().submit(operation)
    return register(Pending([ticket], lambda: gathered(ticket, array), [source]))


@checked
def allgather(array: Array, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Join the arrays of all ranks along their first dimension; arguments as in `allgather_async`."""
    result: Array = at_once(allgather_async, array, name, process_set)
    return result


@checked
def broadcast_async(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start sending the root's array to all ranks, into a new array.

    Args:
        array: What the root sends; elsewhere shape and dtype count.
        root_rank: Global rank that sends.
        name: Name by which ranks match the operation; counted if missing.
        process_set: The ranks that take part.

    Raises:
        InvalidArgument: The root is not in the set, or the operation is invalid on this rank.
    """
    return _start_broadcast(out_of_place(array, "broadcast"), root_rank, name, process_set)


@checked
def broadcast_async_(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast in place; arguments as in `broadcast_async`."""
    return _start_broadcast(in_place(array, "broadcast_"), root_rank, name, process_set)


@checked
def broadcast(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Return the root's array on all ranks; arguments as in `broadcast_async`."""
    result: Array = at_once(broadcast_async, array, root_rank, name, process_set)
    return result


@checked
def broadcast_(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Broadcast in place and return the array; arguments as in `broadcast_async`."""
    result: Array = at_once(broadcast_async_, array, root_rank, name, process_set)
    return result


@checked
def alltoall_async(
    array: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending rows of the array to every rank and taking theirs.

    Args:
        array: Its first dimension is split; the others agree on all ranks.
        splits: Rows for each rank of the set, in order. None: equal shares.
        name: Name by which ranks match the operation; counted if missing.
        process_set: The ranks that take part.

    Returns:
        Handle for `synchronize`, which returns the rows from all ranks in order, and how many came from each (int32).

    Raises:
        InvalidArgument: The splits do not fit the array or the set.
    """
    number, dtype = number_of(process_set), number_of_dtype(array, "alltoall")
    source = readable(array)
    counts = [] if splits is None else [int(rows) for rows in splits]
    wire = wire_name("alltoall", name, number)
    operation = Alltoall(wire, address(source), array.shape, dtype, counts, number, device_of(source))
    ticket = session.require().submit(operation)

    def finish() -> tuple[Array, Array]:
        received = received_splits(ticket, array)
        return gathered(ticket, array), received

    return register(Pending([ticket], finish, [source]))


@checked
def alltoall(
    array: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
    """Send rows to all ranks; returns those received and, if splits were given, how many came from each rank."""
    rows, received = at_once(alltoall_async, array, splits, name, process_set)
    return rows if splits is None else (rows, received)


@checked
def reducescatter_async(
    array: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducing the array over all ranks, of which each gets its share of the rows.

    Args:
        array: This rank's contribution; the first ranks get one row more where they do not divide evenly.
        name: Name by which ranks match the operation; counted if missing.
        op: ``Average`` or ``Sum``.
        process_set: The ranks that take part.
        prescale_factor: Multiplies each contribution.
        postscale_factor: Multiplies the result.

    Raises:
        InvalidArgument: The array has no dimension, or the operation is invalid on this rank.
        HorovodInternalError: Another operation.
    """
    if resolve_op(None, op) not in (Average, Sum):
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    number, dtype = number_of(process_set), number_of_dtype(array, "reducescatter", reduces=True)
    if array.ndim == 0:
        raise InvalidArgument("reducescatter of a scalar: it needs at least one dimension to split along")
    source = readable(array)
    output = like(source, own_rows(array.shape[0], process_set))
    operation = Reducescatter(
        wire_name("reducescatter", name, number), address(source), address(output), array.shape, dtype, op,
        float(prescale_factor), float(postscale_factor), process_set=number, device=device_of(source),
    )  # fmt: skip
    ticket = session.require().submit(operation)

    def finish() -> Array:
        join(ticket, output)
        return output

    return register(Pending([ticket], finish, [source]))


@checked
def reducescatter(
    array: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduce and return this rank's rows; arguments as in `reducescatter_async`."""
    result: Array = at_once(reducescatter_async, array, name, op, process_set, prescale_factor, postscale_factor)
    return result


def _operation(wire: str, buffers: Buffers, reduction: Reduction) -> Allreduce:
    source, target, shape = address(buffers.source), address(buffers.target), buffers.output.shape
    return Allreduce(
        wire, source, target, shape, buffers.number, *reduction[:3], process_set=reduction.process_set,
        device=device_of(buffers.source),
    )  # fmt: skip


def _start(buffers: Buffers, name: str | None, reduction: Reduction) -> int:
    wire = wire_name("allreduce", name, reduction.process_set)
    ticket = session.require().submit(_operation(wire, buffers, reduction))
    return register(Pending([ticket], lambda: buffers.settle(ticket), [buffers]))


def _group(members: list[Buffers], name: str | None, reduction: Reduction) -> list[Array]:
    return list(at_once(_start_group, members, name, reduction))


def _start_group(members: list[Buffers], name: str | None, reduction: Reduction) -> int:
    if not members:
        raise InvalidArgument("grouped_allreduce: got no arrays, expected at least one")
    base = wire_name("grouped_allreduce", name, reduction.process_set)
    tickets = session.require().submit_group(base, [_operation("", buffers, reduction) for buffers in members])

    def finish() -> list[Array]:
        return [one.settle(ticket) for one, ticket in zip(members, tickets, strict=True)]

    return register(Pending(tickets, finish, members))


def _start_broadcast(buffers: Buffers, root: int, name: str | None, process_set: ProcessSet) -> int:
    root, number = operator.index(root), number_with_root(process_set, root)
    source, target, shape = address(buffers.source), address(buffers.target), buffers.output.shape
    wire = wire_name("broadcast", name, number)
    what = Broadcast(wire, source, target, shape, buffers.number, root, number, device_of(buffers.source))
    ticket = session.require().submit(what)
    return register(Pending([ticket], lambda: buffers.settle(ticket), [buffers]))
