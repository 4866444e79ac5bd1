"""Horovod's collectives on NumPy arrays, without a framework: ``import ringtune.numpy as hvd``.

Names, arguments and meanings are those of `ringtune.torch`; both may be used in one process.
"""

from __future__ import annotations

from ringtune.common import front_end
from ringtune.common.front_end import *  # noqa: F403
from ringtune.numpy.collectives import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce,
    grouped_allreduce_,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from ringtune.numpy.lifecycle import barrier, init, join, shutdown

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "init",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "shutdown",
    "synchronize",
]
__all__ += front_end.__all__
