"""Horovod's collectives for JAX, on arrays and pytrees, inside ``jit`` and outside: ``import ringtune.jax as hvd``.

Functions are pure: they return new arrays. Inside ``jit`` the collectives of a program run in its order, on all ranks
alike; outside, a call returns when its result is there.
"""

from __future__ import annotations

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
from ringtune.common.reductions import Adasum, Average, Max, Min, Product, Sum
from ringtune.errors import HorovodInternalError
from ringtune.jax import elastic
from ringtune.jax.collectives import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from ringtune.jax.compression import Compression
from ringtune.jax.gradients import average_gradients
from ringtune.jax.lifecycle import init, join, shutdown
from ringtune.jax.parameters import broadcast_parameters
from ringtune.numpy.objects import allgather_object, broadcast_object
from ringtune.session import is_initialized

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "average_gradients",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
