"""`KerasModel`: a fitted model of Keras that adds its outputs to a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]

from ringtune.spark.model import FrameworkModel, Prediction
from ringtune.spark.params import define


class KerasModel(FrameworkModel):
    """A model of Keras 3 that an estimator has trained.

    Its history is Keras's: a list with a number an epoch, by the name of the loss or metric.
    """

    OWN: ClassVar[Mapping[str, Any]] = {"custom_objects": {}}

    def kept(self, value: Any) -> Any:
        """See the base class."""
        from ringtune.spark.keras.portable import portable

        return portable(value, self.getOrDefault("custom_objects"))

    def prediction(self) -> Callable[[], Prediction]:
        """See the base class."""
        import keras

        backend, packed = keras.backend.backend(), cloudpickle.dumps(self.kept(self.getOrDefault("model")))

        def make() -> Prediction:
            os.environ.setdefault("KERAS_BACKEND", backend)
            model = cloudpickle.loads(packed)

            def predict(inputs: list[Any]) -> list[Any]:
                found = model.predict_on_batch(inputs if len(inputs) > 1 else inputs[0])
                return list(found) if isinstance(found, list | tuple) else [found]

            return predict

        return make


define(KerasModel, KerasModel.OWN)
