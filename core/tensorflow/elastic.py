"""Elastic training with TensorFlow: `run`, `TensorFlowState`, `TensorFlowKerasState` (``hvd.elastic``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from ringtune.common.elastic import run_fn
from ringtune.common.framework_errors import failures_as_ours
from ringtune.common.keras.variables import variables_of_optimizer
from ringtune.common.variables_state import VariablesState
from ringtune.errors import InvalidArgument
from ringtune.tensorflow.basics import init, shutdown
from ringtune.tensorflow.functions import broadcast_object, broadcast_variables

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Make a training function elastic.

    The function gets the state as its first argument. It is called again, with the state of the last commit, whenever
    a rank failed or hosts came or went; before that the process leaves the job and joins its next generation.

    Args:
        func: ``func(state, ...)``.

    Returns:
        A function with the same arguments and result. What the function raises is raised, unless it says that the
        runtime failed.
    """
    return run_fn(failures_as_ours(func), _reset)


def _reset() -> None:
    shutdown()
    init()


class _State(VariablesState):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(broadcast_object, **kwargs)

    def broadcast_values(self) -> None:
        failures_as_ours(broadcast_variables)(self.variables_to_keep(), root_rank=0)


class TensorFlowState(_State):
    """State of a job with variables of TensorFlow.

    Args:
        variables: Variables; default: the global variables of the graph.
        session: Accepted for Horovod's sake; needed in a graph, which is not supported.
        **kwargs: Further attributes.

    Raises:
        InvalidArgument: This is no eager mode.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        if session is not None or not tf.executing_eagerly():
            raise InvalidArgument("TensorFlowState keeps variables of eager mode (TensorFlow 2): session must be None")
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        super().__init__(**kwargs)

    def variables_to_keep(self) -> list[Any]:
        return list(self.variables)


class TensorFlowKerasState(_State):
    """State of a job with a Keras model.

    Args:
        model: Built model.
        optimizer: Optimizer; default: the model's.
        backend: Accepted for Horovod's sake.
        **kwargs: Further attributes.

    Raises:
        InvalidArgument: The model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise InvalidArgument("Model must be built first. Run `model.build(input_shape)`.")
        self.model, self.backend = model, backend
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        super().__init__(**kwargs)

    def variables_to_keep(self) -> list[Any]:
        return [*self.model.variables, *variables_of_optimizer(self.optimizer, self.model)]
