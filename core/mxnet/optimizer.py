"""`DistributedOptimizer` averages gradients where an optimizer takes them; `DistributedTrainer` does for gluon."""

from __future__ import annotations

import itertools
import re
import warnings
from typing import Any

import mxnet as mx

from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.errors import NotSupported
from ringtune.mxnet.compression import Compression
from ringtune.mxnet.gradients import Averaging, check_prefix
from ringtune.mxnet.library import end_step_after

_trainers = itertools.count()
"""Numbers the trainers of this process, the same on all ranks."""


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """An optimizer that averages gradients over the ranks before it updates weights, for ``Module`` and updaters.

    Args:
        optimizer: Optimizer of MXNet, which stays as it is: its ``rescale_grad`` too.
        gradient_predivide_factor: Gradients are divided by it before the sum, and by size/factor after it.
        num_groups: How many groups gradients that are updated together are reduced in; 0: each alone.
        process_set: The ranks that take part; others update with their own gradients.

    Raises:
        InvalidArgument: An argument is invalid.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        # The base class is not initialised: all of its attributes are the optimizer's.
        self._optimizer = optimizer
        self._averaging = Averaging(
            "DistributedOptimizer", gradient_predivide_factor, num_groups, process_set, Compression.none
        )

    def __getattr__(self, item: str) -> Any:
        if item.startswith("__") or "_optimizer" not in self.__dict__:  # while it is copied or unpickled
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return the optimizer's state of a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Return the optimizer's state of a weight, with a float32 copy where it is float16."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradients, then update the weights; of lists, all together."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """The same with a float32 copy where weights are float16."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the optimizer's learning rate."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set the optimizer's factors of the learning rate."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set the optimizer's factors of the weight decay."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _average(self, index: Any, grad: Any) -> None:
        several = isinstance(index, (tuple, list))
        indices, gradients = (index, grad) if several else ([index], [grad])
        self._averaging.reduce(list(gradients), [f"gradient.{one}" for one in indices])


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """A gluon trainer that averages gradients over the ranks while the backward pass still runs.

    Each step is marked for statistics, timelines and the tuner.

    Args:
        params: Parameters to train: a ``ParameterDict`` or a dictionary, whose keys are sorted, or a list; alike on all
            ranks.
        optimizer: Optimizer of MXNet or its name.
        optimizer_params: Its arguments, if it is given by name.
        compression: ``Compression.none``, ``.fp16``, ``.bf16`` or a class of the script's.
        gradient_predivide_factor: Gradients are divided by it before the sum, and by size/factor after it.
        prefix: Before the names of the gradients; needed by nobody, for trainers are numbered.
        num_groups: How many groups gradients are reduced in; 0: each alone.
        process_set: The ranks that take part; others update with their own gradients.

    Raises:
        InvalidArgument: An argument is invalid.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        check_prefix(prefix, "DistributedTrainer: prefix")
        self._averaging = Averaging(
            "DistributedTrainer", gradient_predivide_factor, num_groups, process_set, compression
        )
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer._optimizer
            warnings.warn(
                "DistributedTrainer does not take DistributedOptimizer as its optimizer. We have unwrapped it for you.",
                stacklevel=2,
            )
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        number = next(_trainers)
        self._prefix = f"gradient{number or ''}." if prefix is None else prefix

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Average the gradients and update the parameters; MXNet waits where they are read.

        Args:
            batch_size: Rows of this rank's batch: gradients are divided by it.
            ignore_stale_grad: Leave parameters alone that have no new gradient.

        Raises:
            NotSupported: A gradient is sparse or on a GPU.
        """
        super().step(batch_size, ignore_stale_grad)
        gradients = self._gradients()
        if gradients:
            end_step_after([one[0] for _, one in gradients])

    def _gradients(self) -> list[tuple[str, list[Any]]]:
        """Return name and gradients, one for each device of this process, of the parameters that are trained."""
        return [
            (f"{self._prefix}{index}.{_without_numbers(parameter.name)}", parameter.list_grad())
            for index, parameter in enumerate(self._params)
            if parameter.grad_req != "null"
        ]

    def _allreduce_grads(self) -> None:
        found = self._gradients()
        for name, gradients in found:
            for one in gradients:
                if one.stype != "default":
                    raise NotSupported(
                        f"DistributedTrainer: the gradient of '{name}' is sparse ({one.stype}): make it dense by "
                        "sparse_grad=False"
                    )
            for other in gradients[1:]:
                gradients[0] += other.as_in_context(gradients[0].context)
        self._averaging.reduce([gradients[0] for _, gradients in found], [name for name, _ in found])
        for _, gradients in found:
            for other in gradients[1:]:
                gradients[0].copyto(other)


def _without_numbers(name: str) -> str:
    """Return a parameter's name without the numbers by which gluon counts the blocks of a process."""
    return re.sub(r"\d+(?=_|$)", "", name)
