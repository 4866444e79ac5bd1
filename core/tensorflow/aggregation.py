"""Gradients of several backward passes, summed up on this rank before they travel: for v1 optimizers in graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringtune.errors import InvalidArgument
from ringtune.session import require


class LocalGradientAggregationHelper:
    """Sums up gradients in local variables and reduces the sums every so many passes.

    Args:
        backward_passes_per_step: Passes whose gradients are summed up.
        allreduce_func: Takes gradients and variables, returns the reduced gradients.
        sparse_as_dense: Make ``tf.IndexedSlices`` dense; without it they are refused.
        average_aggregated_gradients: Divide the sums by the number of passes.
        rank: Of this process, part of the variables' names.
        optimizer_type: Part of the variables' names.

    Attributes:
        counter: Passes since the gradients were applied last, a variable; None before the first call.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int | None = None,
        optimizer_type: str = "",
    ) -> None:
        if backward_passes_per_step < 1:
            raise InvalidArgument(f"backward_passes_per_step={backward_passes_per_step}, expected at least 1")
        self.backward_passes_per_step = backward_passes_per_step
        self.counter: Any = None
        self._reduce = allreduce_func
        self._sparse_as_dense, self._average = sparse_as_dense, average_aggregated_gradients
        self._scope = f"aggregation_variables_{optimizer_type}{require().rank if rank is None else rank}"
        self._sums: list[Any] = []

    def compute_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients to apply: reduced sums in every so many passes, this pass's own in the others.

        Raises:
            InvalidArgument: A gradient is sparse, without ``sparse_as_dense``.
        """
        present = [i for i, one in enumerate(grads) if one is not None]
        for i in present:
            if isinstance(grads[i], tf.IndexedSlices) and not self._sparse_as_dense:
                raise InvalidArgument(
                    "IndexedSlices are not supported when `backward_passes_per_step` > 1 and "
                    "`sparse_as_dense` is False."
                )
        dense = [tf.convert_to_tensor(grads[i]) for i in present]
        if self.counter is None:
            self._make_variables(dense)
        count = self.counter.assign(tf.math.floormod(self.counter + 1, self.backward_passes_per_step))
        sums = [own.assign_add(grad) for own, grad in zip(self._sums, dense, strict=True)]
        with tf.control_dependencies([count, *sums]):
            due = tf.equal(tf.identity(count), 0)
            found = tf.cond(
                due, lambda: self._reduced([variables[i] for i in present]), lambda: [*map(tf.identity, dense)]
            )
        result = list(grads)
        for i, one in zip(present, [found] if tf.is_tensor(found) else found, strict=True):
            result[i] = one
        return result

    def apply_gradients(self, grads: Sequence[Any], apply: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Return an op that applies the gradients of `compute_gradients` where they were reduced.

        Args:
            grads: They are there before it is decided.
            apply: Returns an op that applies them.
            otherwise: Returns the op for all other passes.
        """
        with tf.control_dependencies([one for one in grads if one is not None]):
            return tf.cond(tf.equal(self.counter.read_value(), 0), apply, otherwise)

    def _make_variables(self, grads: Sequence[Any]) -> None:
        def variable(value: Any, name: str) -> Any:
            collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
            return tf.compat.v1.get_variable(name, initializer=value, trainable=False, collections=collections)

        with tf.compat.v1.variable_scope(self._scope, use_resource=True):
            self.counter = variable(0, "aggregation_counter")
            self._sums = [variable(tf.zeros(one.shape, one.dtype), str(i)) for i, one in enumerate(grads)]

    def _reduced(self, variables: list[Any]) -> list[Any]:
        divisor = self.backward_passes_per_step if self._average else 1
        sums = [own.read_value() / divisor if divisor > 1 else own.read_value() for own in self._sums]
        reduced = self._reduce(sums, variables)
        with tf.control_dependencies(reduced):
            clear = [own.assign(tf.zeros_like(own)) for own in self._sums]
        with tf.control_dependencies(clear):
            return [tf.identity(one) for one in reduced]
