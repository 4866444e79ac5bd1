"""Horovod's names for MXNet 1.9, on ringtune's runtime: ``import ringtune.mxnet as hvd``."""

from __future__ import annotations

from ringtune.common import front_end
from ringtune.common.front_end import *  # noqa: F403
from ringtune.mxnet import elastic
from ringtune.mxnet.basics import barrier, init, join, shutdown
from ringtune.mxnet.collectives import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from ringtune.mxnet.compression import Compression
from ringtune.mxnet.functions import allgather_object, broadcast_object, broadcast_parameters
from ringtune.mxnet.optimizer import DistributedOptimizer, DistributedTrainer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "join",
    "reducescatter",
    "shutdown",
]
__all__ += front_end.__all__
