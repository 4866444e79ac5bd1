"""Horovod's callbacks, for any Keras: made for one when they are asked for, on top of its own ``Callback``.

Learning rates and momenta are read and set by NumPy: in Keras 3 they are variables of its backend or plain numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import ringtune.numpy as hvd
from ringtune.common.keras import elastic_callbacks
from ringtune.common.keras.variables import (
    bring_up_to_date,
    broadcast_values,
    number_of_parameter,
    set_parameter,
    variables_of_optimizer,
)
from ringtune.errors import InvalidArgument


@functools.cache
def callbacks_for(keras: Any) -> SimpleNamespace:
    """Return the callbacks, those of elastic training too, for a Keras (a module with ``callbacks``)."""
    base = keras.callbacks.Callback

    class BroadcastGlobalVariablesCallback(base):  # type: ignore[misc, valid-type]
        """Gives all ranks the root's model and optimizer, once, after the first batch: the optimizer has slots then.

        Args:
            root_rank: Rank whose values all ranks take.
            device: Accepted for Horovod's sake.
            local_variables: Variables of this rank's own, which are left as they are.
        """

        def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
            super().__init__()
            self.root_rank, self.broadcast_done = root_rank, False
            self._local: set[int] = set()
            for one in local_variables or ():
                self.register_local_var(one)

        def register_local_var(self, var: Any) -> None:
            """Leave a variable as it is."""
            if not hasattr(var, "assign"):
                raise InvalidArgument(f"register_local_var: got a {type(var).__name__}, expected a variable")
            self._local.add(id(var))

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            """Broadcast after the first batch."""
            if self.broadcast_done:
                return
            self.broadcast_done = True
            bring_up_to_date(self.model)
            mine = [one for one in self.model.variables if id(one) not in self._local]
            broadcast_values([*mine, *variables_of_optimizer(self.model.optimizer)], self.root_rank)

    class MetricAverageCallback(base):  # type: ignore[misc, valid-type]
        """Averages the metrics of an epoch over the ranks, in place; stands before callbacks that look at them.

        Args:
            device: Accepted for Horovod's sake.
        """

        def __init__(self, device: str = "") -> None:
            super().__init__()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Average what is in ``logs``."""
            names = sorted(name for name, value in (logs or {}).items() if np.ndim(value) == 0)
            if not names:
                return
            own = np.array([float(logs[name]) for name in names])
            for name, value in zip(names, hvd.allreduce(own, name=f"metrics.{'.'.join(names)}"), strict=True):
                logs[name] = float(value)

    class LearningRateScheduleCallback(base):  # type: ignore[misc, valid-type]
        """Sets the learning rate to ``initial_lr * multiplier(epoch)``.

        Args:
            initial_lr: Learning rate that is multiplied.
            multiplier: Number, taken to the power of epochs since ``start_epoch``, or function of the epoch.
            start_epoch: First epoch in which the rate is set.
            end_epoch: First epoch in which it is not; None: never.
            staircase: Set it at the begin of an epoch only; else at every batch, with the fraction of the epoch.
            momentum_correction: Scale the momentum of a batch with a new rate by new over old rate.
            steps_per_epoch: Batches in an epoch, where ``fit`` does not know.

        Raises:
            InvalidArgument: There is no ``initial_lr``, or the number of batches is not known.
        """

        def __init__(
            self,
            initial_lr: float | None,
            multiplier: float | Callable[[float], float],
            start_epoch: int = 0,
            end_epoch: int | None = None,
            staircase: bool = True,
            momentum_correction: bool = True,
            steps_per_epoch: int | None = None,
        ) -> None:
            super().__init__()
            if initial_lr is None:
                raise InvalidArgument("Parameter `initial_lr` is required")
            self.initial_lr, self.staircase, self.momentum_correction = initial_lr, staircase, momentum_correction
            self.start_epoch, self.end_epoch, self.steps_per_epoch = start_epoch, end_epoch, steps_per_epoch
            self.current_epoch = 0
            self._restore_momentum: float | None = None
            constant = float(multiplier) if not callable(multiplier) else 0.0
            self.multiplier = multiplier if callable(multiplier) else lambda epoch: constant ** (epoch - start_epoch)

        def on_train_begin(self, logs: Any = None) -> None:
            """Find out how many batches an epoch has."""
            if self.staircase or self.steps_per_epoch:
                return
            params = self.params or {}
            if params.get("steps"):
                self.steps_per_epoch = params["steps"]
            elif params.get("samples") and params.get("batch_size"):
                self.steps_per_epoch = params["samples"] // params["batch_size"]
            else:
                raise InvalidArgument(
                    f"Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter "
                    f"to the {type(self).__name__}() or upgrade to the latest version of Keras."
                )

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Take note of the epoch."""
            self.current_epoch = epoch

        def on_batch_begin(self, batch: int, logs: Any = None) -> None:
            """Set the rate, where it is to be set."""
            if self.current_epoch < self.start_epoch or (
                self.end_epoch is not None and self.current_epoch >= self.end_epoch
            ):
                return
            if self.staircase and batch == 0:
                self._adjust(self.current_epoch)
            elif not self.staircase:
                self._adjust(self.current_epoch + float(batch) / (self.steps_per_epoch or 1))

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            """Return to the momentum before."""
            if self._restore_momentum is not None:
                bring_up_to_date(self.model)
                set_parameter(self.model.optimizer, "momentum", self._restore_momentum)
                self._restore_momentum = None

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Report the rate."""
            if logs is not None:
                logs["lr"] = number_of_parameter(self.model.optimizer, "learning_rate")

        def _adjust(self, epoch: float) -> None:
            bring_up_to_date(self.model)
            optimizer = self.model.optimizer
            old, new = number_of_parameter(optimizer, "learning_rate"), self.initial_lr * self.multiplier(epoch)
            set_parameter(optimizer, "learning_rate", new)
            momentum = number_of_parameter(optimizer, "momentum") if self.momentum_correction else None
            # A plain number is part of a function that was traced already, and could not be set in it.
            if momentum and old and hasattr(getattr(optimizer, "momentum", None), "assign"):
                self._restore_momentum = momentum
                set_parameter(optimizer, "momentum", momentum * new / old)

    class LearningRateWarmupCallback(LearningRateScheduleCallback):
        """Lets the learning rate grow from ``initial_lr / size`` to ``initial_lr``.

        Args:
            initial_lr: Rate in the end.
            warmup_epochs: Epochs that it takes.
            momentum_correction: See `LearningRateScheduleCallback`.
            steps_per_epoch: Likewise.
            verbose: Whether rank 0 says when it is over.
        """

        def __init__(
            self,
            initial_lr: float,
            warmup_epochs: int = 5,
            momentum_correction: bool = True,
            steps_per_epoch: int | None = None,
            verbose: int = 0,
        ) -> None:
            self.verbose = verbose

            def multiplier(epoch: float) -> float:
                epoch += 1.0 / (self.steps_per_epoch or 1)  # the last batch of the warm-up has the rate in the end
                return 1.0 / hvd.size() * (epoch * (hvd.size() - 1) / warmup_epochs + 1)

            super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Report the rate, and the end of the warm-up."""
            super().on_epoch_end(epoch, logs)
            if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and hvd.rank() == 0:
                rate = number_of_parameter(self.model.optimizer, "learning_rate")
                print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")

    class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
        """Saves the best model only; ``filepath`` may be set later, before training begins.

        Args:
            monitor: Metric by which models are compared.
            verbose: See ``ModelCheckpoint``.
            save_weights_only: Likewise.
            mode: Likewise.
            save_freq: Likewise.
        """

        def __init__(
            self,
            monitor: str = "val_loss",
            verbose: int = 0,
            save_weights_only: bool = False,
            mode: str = "auto",
            save_freq: str | int = "epoch",
        ) -> None:
            # ModelCheckpoint checks the suffix of its path, which is not known yet.
            unknown = "unset.weights.h5" if save_weights_only else "unset.keras"
            super().__init__(unknown, monitor, verbose, True, save_weights_only, mode, save_freq)
            self.filepath: str | None = None

        def on_train_begin(self, logs: Any = None) -> None:
            """Check that there is a path by now."""
            if self.filepath is None:
                raise InvalidArgument("BestModelCheckpoint: set its filepath before the training begins")
            super().on_train_begin(logs)

    made: dict[str, Any] = {
        kind.__name__: kind
        for kind in (
            BestModelCheckpoint,
            BroadcastGlobalVariablesCallback,
            LearningRateScheduleCallback,
            LearningRateWarmupCallback,
            MetricAverageCallback,
            *elastic_callbacks.make(base),
        )
    }
    return SimpleNamespace(**made)
