"""Horovod's names for ``tf.keras``, Keras 3 or Keras 2 alike: ``import ringtune.tensorflow.keras as hvd``."""

from __future__ import annotations

import tensorflow as _tf

from ringtune.common import front_end
from ringtune.common.front_end import *  # noqa: F403
from ringtune.common.keras.distributed import DistributedOptimizer, partial_optimizer
from ringtune.common.keras.functions import allgather, allreduce, broadcast, loader, reducescatter
from ringtune.tensorflow.basics import init, shutdown
from ringtune.tensorflow.compression import Compression
from ringtune.tensorflow.functions import broadcast_global_variables
from ringtune.tensorflow.keras import callbacks, elastic

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

PartialDistributedOptimizer = partial_optimizer(lambda: _tf.keras.layers.Layer)
load_model = loader(lambda: _tf.keras, DistributedOptimizer)
