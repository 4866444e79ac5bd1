"""Horovod's names for PyTorch, on ringtune's runtime: ``import ringtune.torch as hvd``."""

from __future__ import annotations

from typing import Any

import torch as _torch

from ringtune.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ringtune.torch import elastic
from ringtune.torch import steps as _steps  # noqa: F401 - from here on any optimizer's step ends one
from ringtune.torch.compression import Compression
from ringtune.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ringtune.torch.graph_breaks import leave_graphs as _leave_graphs
from ringtune.torch.mpi_ops import *  # noqa: F403 - exactly its __all__
from ringtune.torch.mpi_ops import __all__ as _operations
from ringtune.torch.optimizer import DistributedOptimizer
from ringtune.torch.sync_batch_norm import SyncBatchNorm
from ringtune.torch.tracing import trace

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "SyncBatchNorm",
    "add_process_set",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "global_process_set",
    "remove_process_set",
    "trace",
    *_operations,
]


def __getattr__(name: str) -> Any:
    """Load what needs ``torch.distributed`` when it is first used."""
    if name == "ddp_hook":
        from ringtune.torch.distributed.hook import ddp_hook

        return ddp_hook
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _check_has_gpu() -> bool:
    """Return whether torch sees a CUDA device."""
    return _torch.cuda.is_available()


_leave_graphs(__name__)
_leave_graphs("ringtune.numpy")  # which sends objects
