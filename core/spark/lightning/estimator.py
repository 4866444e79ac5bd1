"""`TorchEstimator` of Lightning: fits a LightningModule to a DataFrame on the ranks of a barrier stage."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]

from ringtune.errors import InvalidArgument
from ringtune.spark.estimator import FrameworkEstimator
from ringtune.spark.params import define
from ringtune.spark.plan import Plan
from ringtune.spark.torch.model import TorchModel


class TorchEstimator(FrameworkEstimator):
    """Trains a LightningModule on the rows of a DataFrame; arguments are Horovod's, all by keyword.

    ``training_step`` and ``validation_step`` get a dictionary of tensors (rows, ...) by column. Optimizer, loss and
    learning rate are the module's own. `transformation_fn` gets the columns of a batch, arrays (rows, ...) by name, and
    returns them.

    Args:
        given: num_proc, model, backend, store, feature_cols, label_cols, input_shapes, label_shapes (with -1 for the
            rows), sample_weight_col, validation (a part of the rows or a column), batch_size, val_batch_size, epochs,
            callbacks, logger, profiler, log_every_n_steps, trainer_args (further arguments of the ``Trainer``),
            backward_passes_per_step (``accumulate_grad_batches``), shuffle, random_seed, run_id ...

    Raises:
        InvalidArgument: A parameter is unknown.
    """

    FRAMEWORK: ClassVar[str] = "lightning"
    OWN: ClassVar[Mapping[str, Any]] = {
        "input_shapes": None,
        "loss_constructors": None,
        "callbacks": [],
        "logger": None,
        "profiler": None,
        "log_every_n_steps": 50,
        "trainer_args": {},
    }

    def trainer(self) -> Callable[..., dict[str, Any]]:
        """See the base class."""
        from ringtune.spark.torch import lightning_training

        return lightning_training.train

    def pack(self, labels: int) -> bytes:
        """See the base class."""
        from lightning.pytorch import LightningModule

        model = self.value("model")
        if not isinstance(model, LightningModule):
            raise InvalidArgument(
                f"TorchEstimator: model: expected a LightningModule, got a {type(model).__name__}: "
                "ringtune.spark.torch.TorchEstimator takes any torch.nn.Module"
            )
        for name in ("optimizer", "loss", "loss_weights", "loss_constructors", "gradient_compression"):
            if self.value(name) is not None:
                raise InvalidArgument(f"TorchEstimator: {name} is the LightningModule's own: leave it out here")
        names = ("model", "callbacks", "logger", "profiler", "log_every_n_steps", "trainer_args", "transformation_fn")
        packed: bytes = cloudpickle.dumps({name: self.value(name) for name in names})
        return packed

    def fitted(self, plan: Plan, found: Mapping[str, Any], **about: Any) -> TorchModel:
        """See the base class."""
        import torch

        model = cloudpickle.loads(plan.packed)["model"]
        model.load_state_dict(torch.load(io.BytesIO(found["state"]), map_location="cpu", weights_only=True))
        return TorchModel(history=found["history"], model=model, input_shapes=plan.input_shapes, **about)


define(TorchEstimator, TorchEstimator.OWN)
