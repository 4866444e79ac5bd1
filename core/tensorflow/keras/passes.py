"""Gradients of several backward passes, summed up on this rank before they travel: for optimizers of Keras 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from ringtune.common.keras.optimizers import Wrapping


class Sums:
    """The sums of one optimizer.

    Args:
        variables: Whose gradients are summed up.

    Attributes:
        counter: Passes since gradients were applied last.
        sums: One for each variable.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        # Outside of the function that is being traced, which may be traced anew and would make others.
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int64, name="aggregation_counter")
            self.sums = [tf.Variable(tf.zeros(one.shape, one.dtype), trainable=False) for one in variables]


def apply_in_last_pass(
    optimizer: Any,
    how: Wrapping,
    grads: Sequence[Any],
    variables: Sequence[Any],
    apply: Callable[[list[tuple[Any, Any]]], Any],
) -> Any:
    """Sum up gradients; reduce and apply the sums in every so many passes.

    Args:
        optimizer: The wrapped optimizer, which keeps the sums as ``_agg_helper``.
        how: Its wrapping.
        grads: Of this pass.
        variables: Of these gradients.
        apply: Applies pairs of gradient and variable.

    Returns:
        The optimizer's iterations, which advance in every pass.
    """
    pairs = [(grad, variable) for grad, variable in zip(grads, variables, strict=True) if grad is not None]
    own = [variable for _, variable in pairs]
    helper = optimizer.__dict__.get("_agg_helper")
    if helper is None:
        helper = optimizer.__dict__["_agg_helper"] = Sums(own)
        with tf.init_scope():
            make = getattr(optimizer, "build", None) or optimizer._create_all_weights
            make(own)
    for total, (grad, _) in zip(helper.sums, pairs, strict=True):
        total.assign_add(tf.convert_to_tensor(grad))
    helper.counter.assign_add(1)

    def last() -> Any:
        divisor = how.passes if how.average_passes else 1
        reduced = how.reduce([total / divisor if divisor > 1 else total.read_value() for total in helper.sums], own)
        how.end_step(reduced)
        apply(list(zip(reduced, own, strict=True)))
        for total in helper.sums:
            total.assign(tf.zeros_like(total))
        helper.counter.assign(0)
        return optimizer.iterations.read_value()

    def other() -> Any:
        return optimizer.iterations.assign_add(1, read_value=True)

    return tf.cond(tf.equal(helper.counter, how.passes), last, other)
