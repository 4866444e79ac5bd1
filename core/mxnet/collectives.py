"""Horovod's collectives on arrays of MXNet.

Those whose results have a known shape - allreduce, broadcast, reducescatter - go through MXNet's engine: a call returns
at once, and the collective runs when its arrays are ready. It may fail later: reading the result raises MXNet's
``MXNetError`` with ringtune's text. The others return when their result is there.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ringtune.common.call_plan import ALLREDUCE, BROADCAST, REDUCESCATTER, plan_text
from ringtune.common.process_sets import (
    ProcessSet,
    global_process_set,
    number_of,
    number_with_root,
    own_rows,
    wire_name,
)
from ringtune.common.reductions import Adasum, Average, Reduction, Sum, make_reduction, resolve_op
from ringtune.errors import HorovodInternalError, InvalidArgument
from ringtune.mxnet.checked_calls import checked
from ringtune.mxnet.compression import Compression
from ringtune.mxnet.library import array_of, empty_like, push, view_of
from ringtune.numpy import collectives as arrays
from ringtune.session import require


@checked
def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce an array over all ranks into a new one.

    Args:
        tensor: This rank's contribution; same shape and dtype on all ranks.
        average: Deprecated, use ``op``.
        name: Name by which ranks match the operation; counted if missing.
        priority: For MXNet's engine.
        prescale_factor: Multiplies each contribution.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.
        op: ``Average`` (default), ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``.
        compression: ``Compression.none``, ``.fp16``, ``.bf16`` or a class of the script's.

    Returns:
        The reduced array, which MXNet waits for where it is read.

    Raises:
        InvalidArgument: The operation is invalid on this rank.
        NotSupported: The array is sparse or on a GPU.
        NotInitialized: Before ``init()``.
    """
    how = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    return _reduce([tensor], [empty_like(tensor)], [_name("allreduce", name, how)], how, priority, compression)[0]


@checked
def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce an array in place and return it; arguments as in `allreduce`."""
    how = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    return _reduce([tensor], [tensor], [_name("allreduce", name, how)], how, priority, compression)[0]


@checked
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce several arrays, of any dtypes, when all of them are ready; returns new ones.

    Without arrays, what was given is returned. Other arguments as in `allreduce`.
    """
    if not tensors:
        return tensors
    how = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    names = _names("grouped_allreduce", name, how, len(tensors))
    return _reduce(tensors, [empty_like(one) for one in tensors], names, how, priority, compression)


@checked
def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce several arrays in place, when all of them are ready, and return them; see `grouped_allreduce`."""
    if not tensors:
        return tensors
    how = make_reduction(average, op, (prescale_factor, postscale_factor), process_set)
    names = _names("grouped_allreduce", name, how, len(tensors))
    return _reduce(tensors, tensors, names, how, priority, compression)


@checked
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's array on all ranks.

    Args:
        tensor: What the root sends; elsewhere shape and dtype count.
        root_rank: Global rank that sends.
        name: See `allreduce`, as for all that follow.
        priority: Likewise.
        process_set: Likewise.

    Raises:
        InvalidArgument: The root is not in the set; see `allreduce`.
    """
    return _broadcast(tensor, empty_like(tensor), root_rank, name, priority, process_set)


@checked
def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Replace an array's values by the root's and return it; arguments as in `broadcast`."""
    return _broadcast(tensor, tensor, root_rank, name, priority, process_set)


@checked
def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce an array over all ranks, and return this rank's rows; the first ranks have one more if need be.

    Args: see `allreduce`. ``op`` is ``Average`` or ``Sum``.

    Raises:
        HorovodInternalError: Another operation.
        InvalidArgument: The array has no dimension; see `allreduce`.
    """
    how = _scattering(op, prescale_factor, postscale_factor, process_set)
    return _scatter([tensor], [_name("reducescatter", name, how)], how, priority, process_set)[0]


@checked
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce several arrays when all of them are ready, and return this rank's rows of each; see `reducescatter`."""
    if not tensors:
        return tensors
    how = _scattering(op, prescale_factor, postscale_factor, process_set)
    names = _names("grouped_reducescatter", name, how, len(tensors))
    return _scatter(tensors, names, how, priority, process_set)


@checked
def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Join the arrays of all ranks along their first dimension, which may differ between ranks.

    Returns:
        The joined array.

    Raises:
        HorovodInternalError: The array has no dimension.
        InvalidArgument: See `allreduce`.
        RuntimeFailure: The operation failed.
    """
    return array_of(arrays.allgather(view_of(tensor), name, process_set), tensor)


@checked
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Join several arrays, and wait for them once; arguments as in `allgather`. Without arrays, returns what it got."""
    base = [None if name is None else f"{name}.{index}" for index in range(len(tensors))]
    views = [view_of(one) for one in tensors]
    started = [arrays.allgather_async(view, own, process_set) for view, own in zip(views, base, strict=True)]
    return [array_of(arrays.synchronize(one), tensor) for one, tensor in zip(started, tensors, strict=True)] or tensors


@checked
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to each rank, and join those received.

    Args:
        tensor: Rows for all ranks.
        splits: How many rows each rank gets, a list or an array of MXNet; default: equally many.
        name: See `allreduce`.
        priority: Accepted for Horovod's sake.
        process_set: See `allreduce`.

    Returns:
        The rows; with ``splits`` also how many came from each rank (int32).

    Raises:
        InvalidArgument: The ranks do not divide the rows, or the splits do not fit them.
        RuntimeFailure: The operation failed.
    """
    counts = None if splits is None else [operator.index(one) for one in _numbers(splits)]
    found: Any = arrays.alltoall(view_of(tensor), counts, name, process_set)
    if splits is None:
        return array_of(found, tensor)
    rows, received = found
    return array_of(rows, tensor), array_of(received, tensor.astype("int32")[:0])


def _numbers(splits: Any) -> Sequence[Any]:
    found: Sequence[Any] = splits.asnumpy().astype(np.int64).tolist() if hasattr(splits, "asnumpy") else splits
    return found


def _name(kind: str, name: str | None, how: Reduction) -> str:
    return wire_name(kind, name, how.process_set)


def _names(kind: str, name: str | None, how: Reduction, count: int) -> list[str]:
    base = _name(kind, name, how)
    return [f"{base}.{index}" for index in range(count)]


def _reduce(
    tensors: Sequence[Any], outputs: Sequence[Any], names: list[str], how: Reduction, priority: int, compression: Any
) -> list[Any]:
    require()
    by_hand = compression.wire is None or (how.op == Adasum and compression.wire >= 0)
    wire = -1 if by_hand else compression.wire
    text = plan_text(
        ALLREDUCE, names, op=how.op, process_set=how.process_set, wire=wire, factors=(how.prescale, how.postscale)
    )
    if not by_hand:
        push(text, tensors, outputs, priority)
        return list(outputs)
    small = [compression.compress(one) for one in tensors]
    sent = [one for one, _ in small]
    # What it leaves as it is must stay so where the result is another array.
    reduced = [output if one is tensor else one for one, tensor, output in zip(sent, tensors, outputs, strict=True)]
    push(text, sent, reduced, priority)
    for output, one, (_, ctx) in zip(outputs, reduced, small, strict=True):
        if one is not output:
            output[...] = compression.decompress(one, ctx)
    return list(outputs)


def _broadcast(
    tensor: Any, output: Any, root_rank: int, name: str | None, priority: int, process_set: ProcessSet
) -> Any:
    number = number_with_root(process_set, root_rank)
    names = [wire_name("broadcast", name, number)]
    text = plan_text(BROADCAST, names, root=operator.index(root_rank), process_set=number)
    push(text, [tensor], [output], priority)
    return output


def _scattering(op: int, prescale: float, postscale: float, process_set: ProcessSet) -> Reduction:
    if resolve_op(None, op) not in (Average, Sum):
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    return Reduction(op, float(prescale), float(postscale), number_of(process_set))


def _scatter(
    tensors: Sequence[Any], names: list[str], how: Reduction, priority: int, process_set: ProcessSet
) -> list[Any]:
    require()
    for tensor, name in zip(tensors, names, strict=True):
        if not tensor.shape:
            raise InvalidArgument(f"'{name}' of a scalar: it needs at least one dimension to split along")
    outputs = [empty_like(one, own_rows(one.shape[0], process_set)) for one in tensors]
    text = plan_text(
        REDUCESCATTER, names, op=how.op, process_set=how.process_set, factors=(how.prescale, how.postscale)
    )
    push(text, tensors, outputs, priority)
    return outputs
