"""Batch normalisation whose mean and variance are those of the batches of all ranks, for Keras 3 and Keras 2."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringtune.common.reductions import Sum
from ringtune.errors import InvalidArgument
from ringtune.tensorflow import wire
from ringtune.tensorflow.checked_calls import not_converted
from ringtune.tensorflow.naming import op_name
from ringtune.tensorflow.wire import Named, Reduction


@not_converted
def moments_of_all_ranks(inputs: Any, axes: Sequence[int], keep_dims: bool, mask: Any = None) -> tuple[Any, Any]:
    """Return mean and variance over the batches of all ranks; ranks may have batches of different sizes.

    Args:
        inputs: Floating tensor.
        axes: Dimensions that are reduced.
        keep_dims: Whether they are kept, with extent 1.
        mask: Truth values of all dimensions but the last: which elements count; None: all of them.
    """
    dtype = inputs.dtype
    values = tf.cast(inputs, tf.float32) if dtype in (tf.float16, tf.bfloat16) else inputs
    weights = tf.ones_like(values)
    if mask is not None:
        weights *= tf.cast(tf.expand_dims(mask, -1), values.dtype)
    sums = [tf.reduce_sum(one, axes, keepdims=True) for one in (values * weights, tf.square(values) * weights, weights)]
    named = [Named(op_name("allreduce", None, 0), tf.stack(sums))]
    total, squares, count = tf.unstack(wire.allreduce(named, Reduction(Sum))[0])
    count = tf.maximum(count, 1)
    mean = total / count
    variance = tf.maximum(squares / count - tf.square(mean), 0)
    if not keep_dims:
        mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
    return tf.cast(mean, dtype), tf.cast(variance, dtype)


@functools.cache
def layer_class() -> type:
    """Return the class of layers, of the Keras that ``tf.keras`` is."""
    base = tf.keras.layers.BatchNormalization

    class SyncBatchNormalization(base):  # type: ignore[misc, valid-type]
        """Batch normalisation over the batches of all ranks.

        Args:
            fused: Accepted for Horovod's sake: None or False.
            **kwargs: Of ``tf.keras.layers.BatchNormalization``.

        Raises:
            InvalidArgument: ``fused=True``.
        """

        def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
            if fused:
                raise InvalidArgument("SyncBatchNormalization does not support fused=True.")
            kwargs.setdefault("name", None)
            if "fused" in base.__init__.__code__.co_varnames or hasattr(base, "_fused_batch_norm"):
                kwargs["fused"] = False
            super().__init__(**kwargs)

        def _moments(self, inputs: Any, axes: Any = None, keep_dims: bool = False, mask: Any = None) -> Any:
            if hasattr(self, "_reduction_axes"):  # Keras 3, which passes the mask only
                return moments_of_all_ranks(inputs, self._reduction_axes, False, axes if mask is None else mask)
            return moments_of_all_ranks(inputs, axes, keep_dims, mask)

        def get_config(self) -> dict[str, Any]:
            """Return what the layer can be made of again."""
            config: dict[str, Any] = super().get_config()
            config.pop("fused", None)
            return config

    SyncBatchNormalization.__module__, SyncBatchNormalization.__qualname__ = __name__, "SyncBatchNormalization"
    return SyncBatchNormalization
