"""Elastic training with ``tf.keras``: `run`, `KerasState` and the callbacks that keep it (``hvd.elastic``)."""

from __future__ import annotations

from typing import Any

import tensorflow as _tf

from ringtune.common.keras.callback_classes import callbacks_for
from ringtune.tensorflow.elastic import TensorFlowKerasState as KerasState
from ringtune.tensorflow.elastic import run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]

_made = callbacks_for(_tf.keras)
CommitStateCallback: Any = _made.CommitStateCallback
UpdateBatchStateCallback: Any = _made.UpdateBatchStateCallback
UpdateEpochStateCallback: Any = _made.UpdateEpochStateCallback
