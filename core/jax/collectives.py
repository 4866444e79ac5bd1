"""Horovod's collectives on arrays of JAX and pytrees of them.

Inside ``jit`` (and ``grad``, ``vmap``) they become part of the program, and run in its order. Outside, they return when
the result is there. A tree is one call: its leaves are submitted together.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ringtune import session
from ringtune.common.call_plan import ALLGATHER, ALLTOALL, BARRIER, BROADCAST, REDUCESCATTER
from ringtune.common.process_sets import ProcessSet, global_process_set, number_of, number_with_root
from ringtune.common.reductions import Adasum, Average, Reduction, Sum, make_reduction, resolve_op
from ringtune.errors import HorovodInternalError, InvalidArgument, NotSupported
from ringtune.jax import eager, primitive
from ringtune.jax.call import KINDS, Call
from ringtune.jax.checked_calls import checked
from ringtune.jax.compression import Compression
from ringtune.jax.trees import flatten, is_traced, wire_names
from ringtune.numpy import collectives as arrays


@checked
def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce an array, or each leaf of a pytree, over all ranks.

    Its gradient is the same reduction of the gradient.

    Args:
        tensor: This rank's contribution; same shapes, dtypes and structure on all ranks.
        average: Deprecated, use ``op``.
        name: Name by which ranks match the operation, before those of the leaves. Without one, the place in the script
            counts inside ``jit``, and calls are counted outside.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        op: ``Average`` (default), ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``; the last three and Adasum have
            no gradient.
        prescale_factor: Multiplies each contribution.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        A new tree of the same structure, shapes and dtypes.

    Raises:
        InvalidArgument: The operation is invalid on this rank.
        NotInitialized: Before ``init()``.
        RuntimeFailure: The operation failed; inside ``jit``, as a ``jax.errors.JaxRuntimeError`` with its text.
    """
    wire = -1 if op == Adasum else compression.wire
    reduction = make_reduction(average, op, (prescale_factor, postscale_factor), process_set, wire)
    return _reduce("allreduce", tensor, name, reduction, process_set)


@checked
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce several arrays or trees in one call and return a list; arguments as in `allreduce`."""
    if not len(tensors):
        raise InvalidArgument("grouped_allreduce: got no tensors, expected at least one")
    found: list[Any] = allreduce(
        list(tensors), average, name, compression, op, prescale_factor, postscale_factor, process_set
    )
    return found


@checked
def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Join the arrays of all ranks along their first dimension, leaf by leaf.

    Inside ``jit``, ``grad`` and ``vmap`` all ranks need equally many rows; outside they may differ. Its gradient is the
    sum of all ranks' gradients of the own rows.

    Raises:
        InvalidArgument: The operation is invalid on this rank; or inside a program the ranks' rows differ.
        HorovodInternalError: An array has no dimension.
    """
    leaves, places, structure = flatten(tensor, "allgather: tensor", reduces=False)
    if any(len(leaf.shape) == 0 for leaf in leaves):
        raise HorovodInternalError(f"array '{name}' has no dimension: allgather needs at least one to join along")
    return _unflatten(structure, _ask(_call(ALLGATHER, name, process_set, places, leaves), leaves))


@checked
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Join several arrays or trees in one call and return a list; arguments as in `allgather`."""
    if not len(tensors):
        raise InvalidArgument("grouped_allgather: got no tensors, expected at least one")
    found: list[Any] = allgather(list(tensors), name, process_set)
    return found


@checked
def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's array, or tree of arrays, on all ranks.

    Its gradient is the sum of all ranks' gradients at the root, and zero elsewhere.

    Args:
        tensor: What the root sends; elsewhere shapes and dtypes count.
        root_rank: Global rank that sends.
        name: As in `allreduce`.
        process_set: The ranks that take part.

    Raises:
        InvalidArgument: The root is not in the set; see `allreduce`.
    """
    root = operator.index(root_rank)
    number_with_root(process_set, root)
    leaves, places, structure = flatten(tensor, "broadcast: tensor", reduces=False)
    return _unflatten(structure, _ask(_call(BROADCAST, name, process_set, places, leaves, root=root), leaves))


@checked
def alltoall(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to each rank and join those received, leaf by leaf. Its gradient goes the way back.

    Args:
        tensor: Rows for all ranks.
        splits: How many rows each rank gets; default: equally many. Not inside ``jit``, ``grad`` and ``vmap``, whose
            shapes are fixed.
        name: As in `allreduce`.
        process_set: The ranks that take part.

    Returns:
        The rows; with ``splits`` also how many came from each rank (int32).

    Raises:
        InvalidArgument: The ranks do not divide the rows, or the splits do not fit them.
        NotSupported: Splits inside a program.
    """
    leaves, places, structure = flatten(tensor, "alltoall: tensor", reduces=False)
    call = _call(ALLTOALL, name, process_set, places, leaves)
    if splits is None:
        return _unflatten(structure, _ask(call, leaves))
    if is_traced(leaves):
        raise NotSupported(
            "alltoall with splits inside jit, grad or vmap: how many rows come would not be known; send equal shares "
            "(without splits), padded, or call it outside"
        )
    rows, received = [], np.empty(0, np.int32)
    counts = [operator.index(one) for one in splits]
    names = [one.removeprefix("alltoall.").removesuffix(f"@set{call.process_set}") for one in call.names]
    for leaf, own in zip(leaves, names, strict=True):
        found, received = arrays.alltoall(np.asarray(leaf), counts, own, process_set)
        rows.append(eager.place(found, leaf))
    return _unflatten(structure, rows), jax.numpy.asarray(received)


@checked
def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce, and keep this rank's rows, leaf by leaf; the first ranks have one more if need be.

    Its gradient is gathered from all ranks.

    Raises:
        HorovodInternalError: Another operation than Average and Sum.
        InvalidArgument: An array has no dimension; see `allreduce`.
    """
    if resolve_op(None, op) not in (Average, Sum):
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    reduction = Reduction(op, float(prescale_factor), float(postscale_factor), number_of(process_set))
    return _reduce("reducescatter", tensor, name, reduction, process_set)


@checked
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce and scatter several arrays or trees in one call and return a list; arguments as in `reducescatter`."""
    if not len(tensors):
        raise InvalidArgument("grouped_reducescatter: got no tensors, expected at least one")
    found: list[Any] = reducescatter(list(tensors), op, name, process_set, prescale_factor, postscale_factor)
    return found


@checked
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have reached this point; inside ``jit``, whenever the program does."""
    call = _call(BARRIER, "noname", process_set, [""], [np.empty(0)])
    primitive.collective_p.bind(call=call)


def reduce_gradients(
    gradients: Any, op: int, name: str, compression: Any, predivide_factor: float, process_set: ProcessSet
) -> Any:
    """Reduce the gradients of a step, which ends with it; see `ringtune.jax.average_gradients`.

    Raises:
        InvalidArgument: A predivide factor with another operation than Average.
    """
    factors = 1.0, 1.0
    if predivide_factor != 1.0:
        if op != Average:
            raise InvalidArgument("gradient_predivide_factor not supported with op != Average")
        # The average divides by the size as well.
        factors = 1.0 / predivide_factor, predivide_factor
    wire = -1 if op == Adasum else compression.wire
    reduction = make_reduction(None, op, factors, process_set, wire)
    return _reduce("allreduce", gradients, name, reduction, process_set, ends_step=True)


def _reduce(
    kind: str, tree: Any, name: str | None, reduction: Reduction, process_set: ProcessSet, *, ends_step: bool = False
) -> Any:
    leaves, places, structure = flatten(tree, f"{kind}: tensor", reduces=True)
    if not leaves:
        return tree
    number = KINDS.index(kind)
    if number == REDUCESCATTER and any(len(leaf.shape) == 0 for leaf in leaves):
        raise InvalidArgument("reducescatter of a scalar: it needs at least one dimension to split along")
    call = _call(
        number, name, process_set, places, leaves,
        op=reduction.op, factors=(reduction.prescale, reduction.postscale), wire=reduction.wire, ends_step=ends_step,
    )  # fmt: skip
    return _unflatten(structure, _ask(call, leaves))


def _call(
    kind: int, name: str | None, process_set: ProcessSet, places: Sequence[str], leaves: Sequence[Any], **more: Any
) -> Call:
    number, now = number_of(process_set), session.require()
    names = wire_names(KINDS[kind], name, number, places, leaves)
    place = process_set.rank() if process_set.included() else -1
    if place == -1:
        raise InvalidArgument(f"{KINDS[kind]}: this rank ({now.rank}) is not in process set {number}: {process_set}")
    members = process_set.size() or 1, place or 0
    return Call(kind, tuple(names), members, now.rank, process_set=number, **more)


def _ask(call: Call, leaves: Sequence[Any]) -> list[Any]:
    if not leaves:
        return []
    return primitive.bind(call, leaves) if is_traced(leaves) else list(eager.run(call, leaves))


def _unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    return jax.tree_util.tree_unflatten(structure, leaves)
