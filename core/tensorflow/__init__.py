"""Horovod's names for TensorFlow 2, on ringtune's runtime: ``import ringtune.tensorflow as hvd``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow as _tf

from ringtune.common.job import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ringtune.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ringtune.common.rank_info import (
    cross_rank,
    cross_size,
    is_homogeneous,
    local_rank,
    local_size,
    rank,
    size,
    start_timeline,
    stop_timeline,
)
from ringtune.common.reductions import Adasum, Average, Max, Min, Product, Sum, resolve_op
from ringtune.errors import HorovodInternalError
from ringtune.session import is_initialized
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
from ringtune.tensorflow.library import ops as _ops
from ringtune.tensorflow.optimizer import DistributedOptimizer
from ringtune.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

if TYPE_CHECKING:
    SyncBatchNormalization: Any

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
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
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "vars_to_refs",
]

_ops()  # TensorFlow learns the ops now, so that a saved function that has them can be loaded
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
