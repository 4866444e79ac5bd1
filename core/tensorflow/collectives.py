"""Horovod's collectives on tensors of TensorFlow, in eager mode and in ``tf.function``; all are differentiable.

In eager mode a call returns when the other ranks have called too. In a traced function it adds an asynchronous op.
Errors of the runtime are TensorFlow's, with ringtune's text: ``FailedPreconditionError`` (the ranks disagree, or
`init` is missing), ``InvalidArgumentError``, ``AbortedError`` (the job was left), ``UnknownError`` (a rank is gone).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringtune.common.process_sets import ProcessSet, global_process_set, number_of, number_with_root
from ringtune.common.reductions import Adasum, Average, Sum, check_adasum, resolve_op
from ringtune.errors import InvalidArgument, NotSupported
from ringtune.tensorflow import wire
from ringtune.tensorflow.checked_calls import checked, not_converted
from ringtune.tensorflow.compression import Compression, wire_number
from ringtune.tensorflow.naming import op_name
from ringtune.tensorflow.wire import Named, Reduction


@checked
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over the ranks.

    Args:
        tensor: Tensor, variable or ``tf.IndexedSlices``, of the same shape on all ranks; slices may differ in rows.
        average: Deprecated; use ``op``.
        device_dense: Device of the op, by ``tf.device``; empty: where TensorFlow puts it.
        device_sparse: The same for slices.
        compression: How floating tensors travel.
        op: ``Average`` (default), ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``.
        prescale_factor: Multiplies before the reduction, in double precision.
        postscale_factor: Multiplies after it.
        name: By which ranks match the op; see `ringtune.tensorflow.naming` for ops without.
        process_set: The ranks that take part.
        ignore_name_scope: Accepted for Horovod's sake: names have no scopes here.

    Returns:
        The reduced tensor; of slices, those of all ranks, which add up.

    Raises:
        InvalidArgument: An argument is invalid on this rank.
        NotSupported: Slices with another operation than ``Average`` and ``Sum``, or with factors.
    """
    how = _reduction(average, op, (prescale_factor, postscale_factor), process_set, compression)
    if isinstance(tensor, tf.IndexedSlices):
        with tf.device(device_sparse):
            return gather_slices([tensor], [op_name("allreduce", name, how.process_set)], how, process_set)[0]
    with tf.device(device_dense):
        named = Named(op_name("allreduce", name, how.process_set), tf.convert_to_tensor(tensor))
        return reduce_dense([named], how, compression)[0]


@checked
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Any:
    """Reduce tensors that run together: when all of them are ready on all ranks.

    Args:
        tensors: Tensors, variables and slices, of any dtypes.
        average: See `allreduce`, as for all that follow.
        device_dense: Likewise.
        device_sparse: Likewise.
        compression: Likewise.
        op: Likewise.
        prescale_factor: Likewise.
        postscale_factor: Likewise.
        process_set: Likewise.
        ignore_name_scope: Likewise.
        name: Likewise.

    Returns:
        The results in the same order.
    """
    if not tensors:
        return tensors
    how = _reduction(average, op, (prescale_factor, postscale_factor), process_set, compression)
    base = op_name("allreduce", name, how.process_set)
    rows = [i for i, one in enumerate(tensors) if isinstance(one, tf.IndexedSlices)]
    dense = [i for i in range(len(tensors)) if i not in rows]
    found: dict[int, Any] = {}
    if dense:
        with tf.device(device_dense):
            named = wire.grouped(base, [tf.convert_to_tensor(tensors[i]) for i in dense])
            found.update(zip(dense, reduce_dense(named, how, compression), strict=True))
    if rows:
        with tf.device(device_sparse):
            names = [f"{base}.{i}" for i in rows]
            slices = gather_slices([tensors[i] for i in rows], names, how, process_set)
            found.update(zip(rows, slices, strict=True))
    return [found[i] for i in range(len(tensors))]


@checked
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor over the ranks; each gets its share of the rows, the first ranks one more if need be.

    Args: see `allreduce`. ``op`` is ``Average`` or ``Sum``.
    """
    named = [Named(op_name("reducescatter", name, number_of(process_set)), tf.convert_to_tensor(tensor))]
    return _scatter(named, device_dense, compression, op, (prescale_factor, postscale_factor), process_set)[0]


@checked
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce tensors that run together, and get a share of the rows of each. See `reducescatter`."""
    if not tensors:
        return tensors
    base = op_name("reducescatter", None, number_of(process_set))
    named = wire.grouped(base, [tf.convert_to_tensor(one) for one in tensors])
    return _scatter(named, device_dense, compression, op, (prescale_factor, postscale_factor), process_set)


@checked
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """Join the rows of all ranks, in order of ranks.

    Args:
        tensor: Tensor or variable; the ranks' may differ in the number of rows.
        name: By which ranks match the op.
        ignore_name_scope: Accepted for Horovod's sake.
        process_set: The ranks that take part.
    """
    number = number_of(process_set)
    return wire.allgather([Named(op_name("allgather", name, number), tf.convert_to_tensor(tensor))], number)[0]


@checked
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Join the rows of all ranks, of several tensors in one op; the results in the same order. See `allgather`."""
    if not tensors:
        return []
    number = number_of(process_set)
    base = op_name("allgather", name, number)
    named = [Named(own.name, own.tensor) for own in wire.grouped(base, [tf.convert_to_tensor(one) for one in tensors])]
    return wire.allgather(named, number)


@checked
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's tensor on all ranks.

    Args:
        tensor: Tensor or variable, of the same shape on all ranks.
        root_rank: Global rank that sends.
        name: By which ranks match the op.
        ignore_name_scope: Accepted for Horovod's sake.
        process_set: The ranks that take part.
    """
    number = number_with_root(process_set, root_rank)
    named = Named(op_name("broadcast", name, number), tf.convert_to_tensor(tensor))
    return wire.broadcast([named], root_rank, number)[0]


@checked
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Overwrite variables with the root's values, in one op; return the values."""
    if not variables:
        return []
    number = number_with_root(process_set, root_rank)
    base = op_name("broadcast", name, number)
    named = [Named(f"{base}.{i}", tf.convert_to_tensor(one)) for i, one in enumerate(variables)]
    values = wire.broadcast(named, root_rank, number)
    return [one.assign(value, read_value=True) for one, value in zip(variables, values, strict=True)]


@checked
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to each rank and join what comes.

    Args:
        tensor: Tensor or variable.
        splits: How many rows go to each rank of the set, integers of any kind; None: equal shares.
        name: By which ranks match the op.
        ignore_name_scope: Accepted for Horovod's sake.
        process_set: The ranks that take part.

    Returns:
        What came, in order of ranks; with splits also how many rows came from each rank, int32.
    """
    number = number_of(process_set)
    name = op_name("alltoall", name, number)
    output, received = wire.alltoall(name, tf.convert_to_tensor(tensor), splits, number)
    return output if splits is None else (output, received)


@not_converted
def join() -> Any:
    """Wait until all ranks have joined, contributing neutral elements meanwhile.

    Returns:
        The rank that came last, an int32 scalar.
    """
    return wire.meet("join", "join.noname", 0)


@checked
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have reached this point."""
    number = number_of(process_set)
    wire.meet("barrier", op_name("barrier", None, number), number)


@not_converted
def rank_op(name: str | None = None) -> Any:
    """Return this process's rank when the graph runs, an int32 scalar; for graphs that outlive a change of ranks."""
    return wire.ask("rank", 0, name)


@not_converted
def local_rank_op(name: str | None = None) -> Any:
    """Return this process's rank among those of its host, as `rank_op`."""
    return wire.ask("local_rank", 0, name)


@not_converted
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks of a process set, as `rank_op`."""
    return wire.ask("size", process_set_id, name)


@not_converted
def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks on this host, as `rank_op`."""
    return wire.ask("local_size", 0, name)


@not_converted
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if this process is in a set, else 0; -1: not initialised; -2: there is no such set. As `rank_op`."""
    return wire.ask("included", process_set_id, name)


# -- what the rest of the front end builds on ------------------------------------------------------------------------


def reduce_dense(named: Sequence[Named], how: Reduction, compression: Any) -> list[Any]:
    """Return reduced tensors; a compressor that the runtime does not know casts by itself."""
    if how.wire != -1 or compression is Compression.none:
        return wire.allreduce(named, how)
    small = [compression.compress(one.tensor) for one in named]
    travelling = [
        Named(one.name, tensor, one.group, one.group_size) for one, (tensor, _) in zip(named, small, strict=True)
    ]
    reduced = wire.allreduce(travelling, how)
    return [compression.decompress(one, ctx) for one, (_, ctx) in zip(reduced, small, strict=True)]


def gather_slices(
    slices: Sequence[tf.IndexedSlices], names: Sequence[str], how: Reduction, process_set: ProcessSet
) -> list[tf.IndexedSlices]:
    """Return slices that hold the rows of all ranks, in one op for all of them.

    Raises:
        NotSupported: Another operation than ``Average`` and ``Sum``, or factors.
    """
    if how.op not in (Average, Sum) or (how.prescale, how.postscale) != (1.0, 1.0):
        raise NotSupported(
            "IndexedSlices (sparse gradients) can be averaged or summed only, without factors: use "
            "tf.convert_to_tensor(slices), or sparse_as_dense=True"
        )
    named = []
    for name, one in zip(names, slices, strict=True):
        named += [Named(f"{name}.values", one.values), Named(f"{name}.indices", one.indices)]
    found = wire.allgather(named, how.process_set)
    result = []
    for i, one in enumerate(slices):
        values = found[2 * i]
        if how.op == Average:
            values = tf.cast(values / wire.size_of(process_set, values.dtype), one.values.dtype)
        result.append(tf.IndexedSlices(values, found[2 * i + 1], dense_shape=one.dense_shape))
    return result


def _reduction(
    average: bool | None, op: int | None, factors: tuple[float, float], process_set: ProcessSet, compression: Any
) -> Reduction:
    resolved = resolve_op(average, op)
    if resolved == Adasum:
        check_adasum(process_set)
    before, after = factors
    return Reduction(resolved, before, after, number_of(process_set), wire_number(compression, resolved))


def _scatter(
    named: Sequence[Named],
    device: str,
    compression: Any,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> list[Any]:
    if op not in (Average, Sum):
        raise InvalidArgument(f"reducescatter only supports AVERAGE and SUM: op={op}, expected 0 or 1")
    how = Reduction(op, *factors, number_of(process_set))
    with tf.device(device):
        small = [compression.compress(one.tensor) for one in named]
        sent = [
            Named(one.name, tensor, one.group, one.group_size) for one, (tensor, _) in zip(named, small, strict=True)
        ]
        found = wire.reducescatter(sent, how)
        return [compression.decompress(one, ctx) for one, (_, ctx) in zip(found, small, strict=True)]
