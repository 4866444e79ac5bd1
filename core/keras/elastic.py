"""Elastic training with Keras 3: `run`, `KerasState` and the callbacks that keep it (``hvd.elastic``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras as _keras

from ringtune.common.elastic import run_fn
from ringtune.common.framework_errors import failures_as_ours
from ringtune.common.keras.callback_classes import callbacks_for
from ringtune.common.keras.functions import KerasState
from ringtune.keras.lifecycle import init, shutdown

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]

R = TypeVar("R")

_made = callbacks_for(_keras)
CommitStateCallback: Any = _made.CommitStateCallback
UpdateBatchStateCallback: Any = _made.UpdateBatchStateCallback
UpdateEpochStateCallback: Any = _made.UpdateEpochStateCallback


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Make a training function elastic; see `ringtune.tensorflow.elastic.run`.

    Args:
        func: ``func(state, ...)``.

    Returns:
        A function with the same arguments and result.
    """
    return run_fn(failures_as_ours(func), _reset)


def _reset() -> None:
    shutdown()
    init()
