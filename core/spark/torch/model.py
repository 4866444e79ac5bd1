"""`TorchModel`: a fitted PyTorch model that adds its outputs to a DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ringtune.spark.model import FrameworkModel, Prediction


class TorchModel(FrameworkModel):
    """A PyTorch model that an estimator has trained.

    Its history is a list with an entry an epoch: ``{"epoch", "train": {"loss", "all_metrics"}, "validation"}``.
    """

    def prediction(self) -> Callable[[], Prediction]:
        """See the base class."""
        packed = cloudpickle.dumps(self.getOrDefault("model"))

        def make() -> Prediction:
            import torch

            from ringtune.spark.torch.training import outputs_of

            model = cloudpickle.loads(packed).eval()

            def predict(inputs: list[Any]) -> list[Any]:
                with torch.no_grad():
                    found = outputs_of(model(*map(torch.from_numpy, inputs)))
                    return [one.double().numpy() for one in found]

            return predict

        return make
