"""`TorchEstimator`: fits a PyTorch model to a DataFrame on the ranks of a barrier stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]

from ringtune.errors import InvalidArgument
from ringtune.spark.estimator import FrameworkEstimator
from ringtune.spark.params import define
from ringtune.spark.plan import Plan
from ringtune.spark.torch import training
from ringtune.spark.torch.model import TorchModel


class TorchEstimator(FrameworkEstimator):
    """Trains a PyTorch model on the rows of a DataFrame; arguments are Horovod's, all by keyword.

    The learning rate is multiplied by the number of ranks. `transformation_fn` gets the columns of a batch, arrays
    (rows, ...) by name, and returns them.

    Args:
        given: num_proc, model, backend, store, optimizer, loss (one function a label column, or ``loss_constructors``),
            loss_weights, metrics (a list of functions a label column), feature_cols, label_cols, input_shapes,
            label_shapes (with -1 for the rows), sample_weight_col, validation (a part of the rows or a column),
            batch_size, val_batch_size, epochs, backward_passes_per_step, shuffle, random_seed, run_id ...

    Raises:
        InvalidArgument: A parameter is unknown, or two exclude each other.
    """

    FRAMEWORK: ClassVar[str] = "torch"
    OWN: ClassVar[Mapping[str, Any]] = {"input_shapes": None, "loss_constructors": None}

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.value("loss") is not None and self.value("loss_constructors") is not None:
            raise InvalidArgument("TorchEstimator: give loss or loss_constructors, not both")

    def trainer(self) -> Callable[..., dict[str, Any]]:
        """See the base class."""
        return training.train

    def fitted(self, plan: Plan, found: Mapping[str, Any], **about: Any) -> TorchModel:
        """See the base class."""
        model, optimizer, *_ = cloudpickle.loads(plan.packed)
        training.load_state(found["state"], model, optimizer)
        return TorchModel(
            history=found["history"], model=model, optimizer=optimizer, input_shapes=plan.input_shapes, **about
        )

    def pack(self, labels: int) -> bytes:
        """See the base class."""
        model, optimizer = self.value("model"), self.value("optimizer")
        if optimizer is None:
            raise InvalidArgument("TorchEstimator: optimizer is missing")
        own = {id(parameter) for parameter in model.parameters()}
        if not all(id(one) in own for group in optimizer.param_groups for one in group["params"]):
            raise InvalidArgument("TorchEstimator: the optimizer was made with parameters of another model")
        losses = self.value("loss")
        made = self.value("loss_constructors")
        if losses is None and made is not None:
            losses = [one() for one in (made if isinstance(made, list | tuple) else [made])]
        losses = list(losses) if isinstance(losses, list | tuple) else [losses]
        if losses == [None] or len(losses) != labels:
            raise InvalidArgument(f"TorchEstimator: expected {labels} losses, one a label column, got {len(losses)}")
        metrics = self.value("metrics") or []
        groups = [list(one) if isinstance(one, list | tuple) else [one] for one in metrics]
        if groups and len(groups) != labels:
            raise InvalidArgument(f"TorchEstimator: expected {labels} lists of metrics, one a label column")
        packed: bytes = cloudpickle.dumps((model, optimizer, losses, groups, self.value("transformation_fn")))
        return packed


define(TorchEstimator, TorchEstimator.OWN)
