"""Horovod's names for Keras 3 on TensorFlow, JAX or torch, and for Keras 2: ``import ringtune.keras as hvd``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import keras as _keras

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
from ringtune.keras import callbacks, elastic
from ringtune.keras.lifecycle import init, shutdown
from ringtune.session import is_initialized

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

PartialDistributedOptimizer = partial_optimizer(lambda: _keras.layers.Layer)
load_model = loader(lambda: _keras, DistributedOptimizer)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an op that overwrites all global variables of a graph of TensorFlow with those of the root.

    Args:
        root_rank: Global rank whose values all ranks take.

    Raises:
        RuntimeError: There is no such graph, as a rule: Keras 3 runs models eagerly or compiles functions.
    """
    if _keras.backend.backend() == "tensorflow":
        from ringtune.tensorflow import broadcast_global_variables as in_graph

        return in_graph(root_rank)
    raise RuntimeError(
        "hvd.broadcast_global_variables() needs a graph of TensorFlow. "
        "Please use `hvd.callbacks.BroadcastGlobalVariablesCallback(0)` instead."
    )


def __getattr__(name: str) -> Any:
    """Load what is the backend's when it is first used."""
    if name == "Compression":
        backend = _keras.backend.backend()
        return import_module(f"ringtune.{backend}").Compression
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
