"""`DistributedOptimizer`: v1 optimizers of TensorFlow here, those of Keras by `ringtune.tensorflow.keras`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.common.reductions import Adasum, Average
from ringtune.errors import InvalidArgument, NotSupported
from ringtune.tensorflow.aggregation import LocalGradientAggregationHelper
from ringtune.tensorflow.checked_calls import not_converted
from ringtune.tensorflow.compression import Compression
from ringtune.tensorflow.gradients import GradientOptions, groups_of, key_of, reduce_gradients
from ringtune.tensorflow.steps import end_step_after, optimizer_is_wrapped


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """A v1 optimizer whose gradients are reduced; all else is the given optimizer's.

    Args:
        optimizer: Optimizer that applies the gradients.
        name: Of this one; default: ``Distributed`` and the class of the given one.
        use_locking: See ``tf.compat.v1.train.Optimizer``.
        options: How gradients are reduced.
        passes: Backward passes whose gradients are summed up before they travel.
        average_passes: Whether their sum is divided by their number.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        options: GradientOptions,
        passes: int,
        average_passes: bool,
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer, self._options = optimizer, options
        optimizer_is_wrapped()
        self._agg_helper = None
        if passes > 1:
            if tf.executing_eagerly():
                raise InvalidArgument("backward_passes_per_step > 1 is not supported for eager execution")
            self._agg_helper = LocalGradientAggregationHelper(
                passes,
                lambda grads, variables: reduce_gradients(grads, variables, options),
                options.sparse_as_dense,
                average_passes,
                optimizer_type=type(optimizer).__name__,
            )

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable this rank's own."""
        self._options.local.add(key_of(var))

    @not_converted
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs of reduced gradient and variable; arguments are the given optimizer's."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        if self._agg_helper is None:
            reduced = reduce_gradients(grads, variables, self._options)
        else:
            reduced = self._agg_helper.compute_gradients(grads, variables)
        return list(zip(reduced, variables, strict=True))

    @not_converted
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply gradients as the given optimizer does; `global_step` advances in every pass."""
        pairs = list(grads_and_vars)
        if self._agg_helper is None:
            return end_step_after(self._optimizer.apply_gradients(pairs, global_step, name))

        def skip() -> Any:
            return tf.group() if global_step is None else tf.group(global_step.assign_add(1))

        def apply() -> Any:
            return tf.group(end_step_after(self._optimizer.apply_gradients(pairs, global_step, name)))

        return self._agg_helper.apply_gradients([grad for grad, _ in pairs], apply, skip)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the given optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the given optimizer's slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return the given optimizer's variables."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer whose gradients are reduced over the ranks.

    Args:
        optimizer: A ``tf.compat.v1.train.Optimizer``, or an optimizer of Keras 3 or Keras 2, whose state is kept.
        name: Name of a v1 optimizer.
        use_locking: Of a v1 optimizer.
        device_dense: Device of the ops, by ``tf.device``.
        device_sparse: The same for slices.
        compression: How floating gradients travel.
        sparse_as_dense: Make ``tf.IndexedSlices`` dense before they travel.
        backward_passes_per_step: Backward passes whose gradients are summed up before they travel.
        op: The reduction.
        gradient_predivide_factor: An average divides by it before the reduction, and by the rest after it.
        average_aggregated_gradients: Divide the sum of several passes by their number.
        num_groups: Deprecated; use ``groups``.
        groups: Number of groups of gradients that run together, or lists of the variables of each.
        process_set: The ranks that take part.
        scale_local_gradients: Divide gradients of registered local variables by the number of ranks.

    Raises:
        InvalidArgument: An argument is invalid, or this is no optimizer.
        NotSupported: Adasum with a v1 optimizer of another process set.
    """
    if op == Adasum and average_aggregated_gradients:
        raise InvalidArgument("Adasum does not support average_aggregated_gradients == True")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if op == Adasum and process_set is not global_process_set:
            raise NotSupported("Adasum does not support non-global process sets yet.")
        options = GradientOptions(
            op,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            groups_of(num_groups, groups),
            process_set,
            scale_local_gradients,
            device_dense,
            device_sparse,
        )
        return _DistributedOptimizer(
            optimizer, name, use_locking, options, backward_passes_per_step, average_aggregated_gradients
        )
    from ringtune.tensorflow import keras

    if op == Adasum:
        raise InvalidArgument("op == Adasum is not supported yet with Keras")
    return keras.DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
