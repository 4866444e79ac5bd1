"""Collectives on values, `load_model` and the elastic state of any Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ringtune.numpy as hvd
from ringtune.common.keras.variables import array_of, bring_up_to_date, broadcast_values, variables_of_optimizer
from ringtune.common.reductions import Average
from ringtune.common.variables_state import VariablesState
from ringtune.errors import InvalidArgument
from ringtune.numpy.objects import broadcast_object


def array(value: Any) -> np.ndarray[Any, Any]:
    """Return a value - a number, a list, an array, a tensor of any backend - as an array of floating or whole numbers.

    Numbers and lists of them are float32, or int32 where they are whole, as backends make of them.
    """
    found = array_of(value) if hasattr(value, "dtype") and not isinstance(value, np.ndarray) else np.asarray(value)
    if not hasattr(value, "dtype"):
        found = found.astype({"f": np.float32, "i": np.int32}.get(found.dtype.kind, found.dtype))
    return found


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
) -> Any:
    """Return a value reduced over the ranks, as an array.

    Args:
        value: Number, list, array or tensor, of the same shape on all ranks.
        name: By which ranks match the operation.
        average: Deprecated; use ``op``.
        prescale_factor: Multiplies before the reduction.
        postscale_factor: Multiplies after it.
        op: ``Average`` (default), ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``.
        compression: Accepted for Horovod's sake.

    Raises:
        InvalidArgument: Both ``average`` and ``op`` are given.
    """
    return hvd.allreduce(array(value), average, name, op, prescale_factor, postscale_factor)


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the rows of all ranks' values, joined in order of ranks, as an array."""
    return hvd.allgather(array(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the root's value on all ranks, as an array."""
    return hvd.broadcast(array(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Return this rank's share of the rows of the reduced values, as an array."""
    return hvd.reducescatter(array(value), name, op)


def loader(keras: Callable[[], Any], distribute: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``load_model`` for one Keras.

    Args:
        keras: Returns the module.
        distribute: Wraps an optimizer: ``DistributedOptimizer``.
    """

    def load_model(
        filepath: Any,
        custom_optimizers: Any = None,
        custom_objects: Any = None,
        compression: Any = None,
        legacy_opts: bool = False,
    ) -> Any:
        """Load a model that was saved with or without ringtune; its optimizer, with its state, is wrapped.

        Args:
            filepath: As ``keras.models.load_model`` takes it.
            custom_optimizers: Classes of optimizers that Keras does not know, by their own names.
            custom_objects: Further objects by name.
            compression: How floating gradients travel.
            legacy_opts: Whether the optimizer is one of Keras 2's ``optimizers.legacy``.

        Raises:
            InvalidArgument: Legacy optimizers are asked of Keras 3, which has none.
        """
        module = keras()
        if legacy_opts and not hasattr(module, "__internal__") and not hasattr(module.optimizers, "legacy"):
            raise InvalidArgument("load_model: legacy_opts=True needs Keras 2 (TF_USE_LEGACY_KERAS=1)")
        objects = {one.__name__: one for one in custom_optimizers or ()}
        objects.update(custom_objects or {})
        model = module.models.load_model(filepath, custom_objects=objects or None)
        if getattr(model, "optimizer", None) is not None:
            model.optimizer = distribute(model.optimizer, compression=compression)
        return model

    return load_model


class KerasState(VariablesState):
    """State of an elastic job with a Keras model, whatever the backend.

    Args:
        model: Built model.
        optimizer: Optimizer; default: the model's.
        **kwargs: Further attributes.

    Raises:
        InvalidArgument: The model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise InvalidArgument("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        super().__init__(broadcast_object, **kwargs)

    def variables_to_keep(self) -> list[Any]:
        bring_up_to_date(self.model)
        return [*self.model.variables, *variables_of_optimizer(self.optimizer, self.model)]

    def broadcast_values(self) -> None:
        broadcast_values(self.variables_to_keep(), 0)
