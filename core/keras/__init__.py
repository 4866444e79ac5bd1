"""Horovod's names for Keras 3 on TensorFlow, JAX or torch, and for Keras 2: ``import ringtune.keras as hvd``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import keras as _keras

from ringtune.common import front_end
from ringtune.common.front_end import *  # noqa: F403
from ringtune.common.keras.distributed import DistributedOptimizer, partial_optimizer
from ringtune.common.keras.functions import allgather, allreduce, broadcast, loader, reducescatter
from ringtune.keras import callbacks, elastic
from ringtune.keras.lifecycle import init, shutdown

if TYPE_CHECKING:
    Compression: Any

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "init",
    "load_model",
    "reducescatter",
    "shutdown",
]
__all__ += front_end.__all__

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
