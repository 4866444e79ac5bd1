"""Horovod's names for ``tf.keras``, Keras 3 or Keras 2 alike: ``import ringtune.tensorflow.keras as hvd``."""

from __future__ import annotations

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
from ringtune.common.keras.distributed import DistributedOptimizer, partial_optimizer
from ringtune.common.keras.functions import allgather, allreduce, broadcast, loader, reducescatter
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
from ringtune.common.reductions import Adasum, Average, Sum
from ringtune.errors import HorovodInternalError
from ringtune.session import is_initialized
from ringtune.tensorflow.basics import init, shutdown
from ringtune.tensorflow.compression import Compression
from ringtune.tensorflow.functions import broadcast_global_variables
from ringtune.tensorflow.keras import callbacks, elastic

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

PartialDistributedOptimizer = partial_optimizer(lambda: _tf.keras.layers.Layer)
load_model = loader(lambda: _tf.keras, DistributedOptimizer)
