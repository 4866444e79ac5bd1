"""Variables and settings of any Keras, as arrays and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ringtune.numpy as hvd
from ringtune.common.keras.optimizers import is_keras_3
from ringtune.common.process_sets import ProcessSet, global_process_set


def bring_up_to_date(model: Any) -> None:
    """Let the variables of a model that is trained right now hold their values.

    On JAX a running ``fit`` keeps them to itself; after this it takes over what is assigned to them.
    """
    bring = getattr(model, "jax_state_sync", None)
    if bring is not None:
        bring()


def variables_of_optimizer(optimizer: Any, model: Any = None) -> list[Any]:
    """Return the variables of an optimizer of Keras 3 or Keras 2.

    Args:
        optimizer: The optimizer, or None.
        model: Whose variables it trains: an optimizer that has not stepped makes its own for them. None: it is left
            as it is.
    """
    if optimizer is None:
        return []
    build = getattr(optimizer, "build", None)
    built = getattr(optimizer, "built", None) or getattr(optimizer, "_built", False)
    if build is not None and model is not None and not built:
        build(model.trainable_variables)
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def array_of(variable: Any) -> np.ndarray[Any, Any]:
    """Return a copy of a variable's value."""
    if hasattr(variable, "numpy"):
        return np.array(variable.numpy())
    import keras

    return np.array(keras.ops.convert_to_numpy(variable))


def broadcast_values(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite variables of any backend with the root's, in place.

    Variables that hold no numbers, such as the states of generators of random numbers of some backends, are of a dtype
    that travels too.

    Args:
        variables: In the same order on all ranks.
        root_rank: Global rank whose values all ranks take.
        process_set: The ranks that take part.
    """
    started = [
        (one, hvd.broadcast_async(array_of(one), root_rank, f"keras.variables.{i}", process_set))
        for i, one in enumerate(variables)
    ]
    for variable, handle in started:
        variable.assign(hvd.synchronize(handle))


def number_of_parameter(optimizer: Any, name: str) -> float | None:
    """Return a setting of an optimizer, such as its learning rate; None where it has none."""
    value = getattr(_inner(optimizer), name, None)
    if value is None or callable(getattr(value, "get_config", None)):  # a schedule is none that can be set
        return None
    return float(array_of(value)) if hasattr(value, "assign") or hasattr(value, "numpy") else float(value)


def set_parameter(optimizer: Any, name: str, value: float) -> None:
    """Set a setting of an optimizer."""
    inner = _inner(optimizer)
    current = getattr(inner, name)
    if hasattr(current, "assign"):
        current.assign(value)
    else:
        setattr(inner, name, value)


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer) if is_keras_3(optimizer) else optimizer
