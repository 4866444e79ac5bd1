"""Horovod's callbacks for ``tf.keras`` (``hvd.callbacks``)."""

from __future__ import annotations

from typing import Any

import tensorflow as _tf

from ringtune.common.keras.callback_classes import callbacks_for

_made = callbacks_for(_tf.keras)
BestModelCheckpoint: Any = _made.BestModelCheckpoint
BroadcastGlobalVariablesCallback: Any = _made.BroadcastGlobalVariablesCallback
LearningRateScheduleCallback: Any = _made.LearningRateScheduleCallback
LearningRateWarmupCallback: Any = _made.LearningRateWarmupCallback
MetricAverageCallback: Any = _made.MetricAverageCallback
