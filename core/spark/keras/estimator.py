"""`KerasEstimator`: fits a model of Keras to a DataFrame on the ranks of a barrier stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]

from ringtune.errors import InvalidArgument
from ringtune.spark.estimator import FrameworkEstimator
from ringtune.spark.keras.model import KerasModel
from ringtune.spark.params import define
from ringtune.spark.plan import Plan


class KerasEstimator(FrameworkEstimator):
    """Trains a model of Keras 3 on the rows of a DataFrame; arguments are Horovod's, all by keyword.

    Model and ranks use the backend that Keras has in this process. A fixed learning rate is multiplied by the number of
    ranks. `transformation_fn` gets the columns of a batch, arrays (rows, ...) by name, and returns them.

    Args:
        given: num_proc, model, backend, store, optimizer, loss, loss_weights and metrics as ``Model.compile`` takes
            them, feature_cols (in the order of the model's inputs), label_cols (in that of its outputs), label_shapes
            (with -1 for the rows), sample_weight_col, validation (a part of the rows or a column), batch_size,
            val_batch_size, epochs, callbacks, checkpoint_callback (of rank 0 alone), custom_objects, backend_env
            (variables of the ranks), backward_passes_per_step, shuffle, random_seed, run_id ...

    Raises:
        InvalidArgument: A parameter is unknown.
    """

    FRAMEWORK: ClassVar[str] = "keras"
    OWN: ClassVar[Mapping[str, Any]] = {
        "callbacks": [],
        "custom_objects": {},
        "checkpoint_callback": None,
        "backend_env": {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"},
    }

    def trainer(self) -> Callable[..., dict[str, Any]]:
        """See the base class."""
        from ringtune.spark.keras import training

        return training.train

    def variables(self) -> dict[str, str]:
        """See the base class."""
        import keras

        hidden = {} if self.value("use_gpu") else {"CUDA_VISIBLE_DEVICES": ""}
        return {"KERAS_BACKEND": keras.backend.backend(), **hidden, **self.value("backend_env")}

    def shapes_of_inputs(self, features: Sequence[str]) -> list[Any] | None:
        """See the base class.

        Raises:
            InvalidArgument: The model has another number of inputs.
        """
        inputs = getattr(self.value("model"), "inputs", None)
        if inputs is None:
            return None
        if len(inputs) != len(features):
            raise InvalidArgument(
                f"KerasEstimator: the model has {len(inputs)} inputs for the columns {', '.join(features)}"
            )
        shapes = [tuple(one.shape[1:]) for one in inputs]
        return None if any(None in shape for shape in shapes) else [[-1, *shape] for shape in shapes]

    def pack(self, labels: int) -> bytes:
        """See the base class."""
        import keras

        model = self.value("model")
        if not isinstance(model, keras.Model):
            raise InvalidArgument(f"KerasEstimator: model: expected a model of Keras 3, got a {type(model).__name__}")
        for needed in ("optimizer", "loss"):
            if not self.value(needed):
                raise InvalidArgument(f"KerasEstimator: {needed} is missing")
        outputs = getattr(model, "outputs", None)
        if outputs is not None and len(outputs) != labels:
            raise InvalidArgument(f"KerasEstimator: the model has {len(outputs)} outputs for {labels} label columns")
        names = ("model", "optimizer", "loss", "metrics", "callbacks", "checkpoint_callback", "transformation_fn")
        packed: bytes = cloudpickle.dumps({name: self.kept(self.value(name)) for name in names})
        return packed

    def kept(self, value: Any) -> Any:
        """See the base class."""
        from ringtune.spark.keras.portable import portable

        return portable(value, self.value("custom_objects"))

    def fitted(self, plan: Plan, found: Mapping[str, Any], **about: Any) -> KerasModel:
        """See the base class."""
        from ringtune.spark.keras import training

        model = cloudpickle.loads(plan.packed)["model"]
        training.load_state(found["state"], model)
        return KerasModel(
            history=found["history"],
            model=model,
            input_shapes=plan.input_shapes,
            custom_objects=self.value("custom_objects"),
            **about,
        )


define(KerasEstimator, KerasEstimator.OWN)
