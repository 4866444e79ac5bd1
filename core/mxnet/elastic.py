"""Elastic training with MXNet: `run` and `MxnetState` (``hvd.elastic``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import mxnet as mx
import numpy as np

from ringtune.common.elastic import ObjectState, run_fn
from ringtune.common.framework_errors import failures_as_ours
from ringtune.common.rank_info import rank
from ringtune.errors import InvalidArgument
from ringtune.mxnet.basics import init, shutdown
from ringtune.mxnet.functions import broadcast_object

__all__ = ["MxnetState", "run"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Make a training function elastic.

    The function gets the state as its first argument. It is called again, with the state of the last commit, whenever
    a rank failed or hosts came or went; before that the process leaves the job and joins its next generation. A
    failure that MXNet raises where a result is read is recognised; other errors of MXNet are raised as they are.

    Args:
        func: ``func(state, ...)``.

    Returns:
        A function with the same arguments and result.
    """

    def finished(*args: Any, **kwargs: Any) -> R:
        result = func(*args, **kwargs)
        mx.nd.waitall()  # what the function has left in the engine belongs to it
        return result

    return run_fn(failures_as_ours(finished, mx.base.MXNetError), _reset)


def _reset() -> None:
    shutdown()
    init()


class MxnetState(ObjectState):
    """State of a job: parameters, what a trainer's optimizer keeps of them, and plain attributes.

    Args:
        params: Arrays or gluon parameters by name, such as ``net.collect_params()``; initialised, and in the same order
            on all ranks.
        trainer: Gluon trainer of theirs, or None.
        **kwargs: Further attributes and their first values.

    Raises:
        InvalidArgument: ``params`` is no dictionary.
    """

    def __init__(self, params: Any, trainer: Any = None, **kwargs: Any) -> None:
        if not hasattr(params, "items"):
            raise InvalidArgument(f"MxnetState: params is a {type(params).__name__}, expected a dict or ParameterDict")
        self.params, self.trainer = params, trainer
        self._kept: tuple[list[Any], bytes | None] = ([], None)
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)
        self._keep()

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        self._give_back()
        super().restore()

    def saved(self) -> Any:
        return super().saved(), self._kept

    def take_saved(self, saved: Any) -> None:
        attributes, kept = saved
        shapes, own = [one.shape for one in kept[0]], [one.shape for one in self._arrays()]
        if shapes != own:
            raise InvalidArgument(
                f"the state kept in RINGTUNE_ELASTIC_STATE has parameters of the shapes {shapes}, this training {own}: "
                "empty the folder, or name another one"
            )
        self._kept = kept
        super().take_saved(attributes)

    def sync(self) -> None:
        self._keep()
        self._kept = broadcast_object(self._kept, 0, "state")
        self._give_back()
        super().sync()

    def _arrays(self) -> list[Any]:
        return [one.data() if hasattr(one, "data") else one for one in self.params.values()]

    def _keep(self) -> None:
        optimizer = None
        if self.trainer is not None:
            if not self.trainer._kv_initialized:
                self.trainer._init_kvstore()
            optimizer = self.trainer._updaters[0].get_states(dump_optimizer=True)
        self._kept = [one.asnumpy() for one in self._arrays()], optimizer

    def _give_back(self) -> None:
        values, optimizer = self._kept
        for parameter, value in zip(self.params.values(), values, strict=True):
            if hasattr(parameter, "set_data"):
                parameter.set_data(mx.nd.array(value, dtype=value.dtype))
            else:
                parameter[...] = np.asarray(value)
        if optimizer is None:
            return
        first = self.trainer._updaters[0]
        for updater in self.trainer._updaters:  # as gluon's load_states
            updater.set_states(optimizer)
            updater.optimizer = first.optimizer
        self.trainer._optimizer = first.optimizer
        first.optimizer.param_dict = dict(enumerate(self.trainer._params))
