"""Bringing ranks into the same state: variables and any Python object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringtune.common.process_sets import ProcessSet, global_process_set, number_with_root, wire_name
from ringtune.errors import InvalidArgument
from ringtune.numpy import objects
from ringtune.tensorflow import wire
from ringtune.tensorflow.checked_calls import checked, not_converted
from ringtune.tensorflow.naming import numbered
from ringtune.tensorflow.wire import Named


@checked
def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Overwrite variables with those of the root.

    Args:
        variables: Variables of TensorFlow or Keras, in the same order on all ranks; their names do not matter.
        root_rank: Global rank whose values all ranks take.
        process_set: The ranks that take part.
        inplace: Accepted for Horovod's sake.

    Returns:
        In a graph of TensorFlow 1, an op that does it; else nothing.

    Raises:
        InvalidArgument: The root is not in the set.
    """
    variables = list(variables)
    if not variables:
        return None
    number = number_with_root(process_set, root_rank)
    base = wire_name("broadcast", f"variables.{numbered('broadcast_variables')}", number)
    named = [Named(f"{base}.{i}", tf.convert_to_tensor(one)) for i, one in enumerate(variables)]
    values = wire.broadcast(named, root_rank, number)
    assigned = [one.assign(value) for one, value in zip(variables, values, strict=True)]
    if tf.executing_eagerly() or tf.inside_function():
        return None
    return tf.group(*assigned)


@not_converted
def broadcast_global_variables(root_rank: int) -> Any:
    """Return an op that overwrites all global variables of the graph with those of the root.

    Args:
        root_rank: Global rank whose values all ranks take.

    Raises:
        RuntimeError: In eager mode, which has no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. "
            "Please use `hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on all ranks.

    Args:
        obj: What is sent; ignored except on the root.
        root_rank: Global rank that sends.
        session: Accepted for Horovod's sake.
        name: By which ranks match the operation.
        process_set: The ranks that take part.

    Raises:
        RuntimeFailure: The operation failed.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that does what `broadcast_object` does with its argument."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks of the set, in order of ranks; arguments as in `broadcast_object`."""
    return objects.allgather_object(obj, name, process_set)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return whether Adasum is defined for so many ranks.

    Raises:
        InvalidArgument: It is no positive number.
    """
    if not isinstance(num_rank, int) or num_rank < 1:
        raise InvalidArgument(f"check_num_rank_power_of_2({num_rank!r}): expected a number of ranks")
    return num_rank.bit_count() == 1


def vars_to_refs(variables: Any) -> tuple[Any, ...]:
    """Return hashable references to variables, in the structure of lists that they are given in."""
    if isinstance(variables, (list, tuple)):
        return tuple(vars_to_refs(one) for one in variables)
    reference: Any = variables.ref()
    return reference  # type: ignore[no-any-return]


def refs_to_vars(references: Any) -> Any:
    """Return the variables of `vars_to_refs`."""
    if isinstance(references, (list, tuple)):
        return [refs_to_vars(one) for one in references]
    return references.deref()
