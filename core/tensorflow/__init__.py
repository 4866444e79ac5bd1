"""Horovod's names for TensorFlow 2, on ringtune's runtime: ``import ringtune.tensorflow as hvd``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow as _tf

from ringtune.common import front_end
from ringtune.common.front_end import *  # noqa: F403
from ringtune.common.reductions import resolve_op
from ringtune.tensorflow import elastic
from ringtune.tensorflow.aggregation import LocalGradientAggregationHelper
from ringtune.tensorflow.basics import init, shutdown
from ringtune.tensorflow.collectives import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from ringtune.tensorflow.compression import Compression
from ringtune.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
    check_num_rank_power_of_2,
    refs_to_vars,
    vars_to_refs,
)
from ringtune.tensorflow.library import load as _load
from ringtune.tensorflow.optimizer import DistributedOptimizer
from ringtune.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

if TYPE_CHECKING:
    SyncBatchNormalization: Any

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "shutdown",
    "size_op",
    "vars_to_refs",
]
__all__ += front_end.__all__

_load()  # TensorFlow learns the ops now, so that a saved function that has them can be loaded
_IS_TF2 = True


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the operation asked for; Horovod's name and order of arguments.

    Raises:
        InvalidArgument: See `resolve_op`.
    """
    return resolve_op(average, op)


def __getattr__(name: str) -> Any:
    """Load what needs Keras when it is first used."""
    if name == "SyncBatchNormalization":
        from ringtune.tensorflow.sync_batch_norm import layer_class

        return layer_class()
    if name == "keras":
        return import_module("ringtune.tensorflow.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _executing_eagerly() -> bool:
    """Return whether TensorFlow runs ops at once."""
    return bool(_tf.executing_eagerly())
