"""Collectives on arrays that are there: outside of ``jit``, and where compiled code has to call back into Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ringtune import session
from ringtune.common.call_plan import ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, REDUCESCATTER
from ringtune.common.handles import Pending
from ringtune.errors import InvalidArgument
from ringtune.jax.call import Call
from ringtune.numpy.arrays import Array, address, number_of_dtype, readable
from ringtune.numpy.collectives import handles
from ringtune.operations import Allgather, Allreduce, Alltoall, Barrier, Broadcast, Operation, Reducescatter


def run(call: Call, leaves: Sequence[Any], *, fixed: bool = False) -> list[jax.Array]:
    """Return the results as arrays of JAX, on the devices of their leaves.

    Args:
        call: What is asked for.
        leaves: Arrays of JAX.
        fixed: Results have the shapes that the call foresees; others are refused.

    Raises:
        InvalidArgument: The call is invalid on this rank; or a result is of another shape.
        RuntimeFailure: The operation failed.
    """
    found = exchange(call, leaves, fixed=fixed)
    return [place(result, leaf) for result, leaf in zip(found, leaves, strict=True)]


def place(result: Array, leaf: jax.Array) -> jax.Array:
    """Return a result where a leaf is; its memory is taken over if that can be."""
    same = result.shape == leaf.shape or len(leaf.sharding.device_set) == 1
    return jax.device_put(result, leaf.sharding if same else None)


def exchange(call: Call, leaves: Sequence[Any], *, fixed: bool = False) -> list[Array]:
    """Return the results in memory of their own; raises as `run`."""
    arrays = [readable(np.asarray(leaf)) for leaf in leaves]
    found: list[Array] = handles.at_once(_start, call, arrays)
    if fixed:
        for index, (result, array) in enumerate(zip(found, arrays, strict=True)):
            expected = call.result_shape(array.shape, index)
            if result.shape != expected:
                raise InvalidArgument(
                    f"tensor '{call.names[index]}': expected a result of shape {list(expected)}, but the ranks "
                    f"together have one of {list(result.shape)}: in jit, grad and vmap all ranks need equally many rows"
                )
    if call.ends_step:
        session.require().end_step()
    return found


def _start(call: Call, arrays: Sequence[Array]) -> int:
    now = session.require()
    if call.kind == BARRIER:
        return handles.register(Pending([now.submit(Barrier(call.names[0], call.process_set))], list))
    targets = [
        None if call.kind in (ALLGATHER, ALLTOALL) else _memory(call, index, one) for index, one in enumerate(arrays)
    ]
    tickets: list[int] = []
    for index, (array, target) in enumerate(zip(arrays, targets, strict=True)):
        tickets.append(now.submit(_operation(call, index, array, target)))

    def finish() -> list[Array]:
        return [
            _gathered(ticket, array) if target is None else target
            for ticket, array, target in zip(tickets, arrays, targets, strict=True)
        ]

    return handles.register(Pending(tickets, finish, [arrays, targets]))


def _memory(call: Call, index: int, array: Array) -> Array:
    """Return memory for a result, aligned so that JAX takes it over."""
    shape = call.result_shape(array.shape, index)
    count = int(np.prod(shape)) * array.itemsize
    if count == 0:
        return np.empty(shape, array.dtype)
    buffer = session.require().result_memory(count)
    found: Array = np.asarray(buffer).view(array.dtype).reshape(shape)
    return found


def _gathered(ticket: int, array: Array) -> Array:
    shape, buffer = session.require().take_gathered(ticket)
    if 0 in shape:
        return np.empty(shape, array.dtype)
    found: Array = buffer.view(array.dtype).reshape(shape)
    return found


def _operation(call: Call, index: int, array: Array, target: Array | None) -> Operation:
    name, number = call.names[index], number_of_dtype(array, call.names[index])
    source, shape, process_set = address(array), array.shape, call.process_set
    if target is None:
        kind = Allgather if call.kind == ALLGATHER else Alltoall
        return kind(name, source, shape, number, process_set=process_set)
    to = address(target)
    if call.kind == BROADCAST:
        return Broadcast(name, source, to, shape, number, call.root, process_set)
    if call.kind == REDUCESCATTER:
        return Reducescatter(name, source, to, shape, number, call.op, *call.factors, process_set=process_set)
    assert call.kind == ALLREDUCE
    return Allreduce(name, source, to, shape, number, call.op, *call.factors, process_set=process_set, wire=call.wire)
