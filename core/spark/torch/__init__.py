"""A PyTorch model as an estimator of Spark ML: ``TorchEstimator(...).fit(df)`` gives a ``TorchModel``."""

from ringtune.spark.torch.estimator import TorchEstimator
from ringtune.spark.torch.model import TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
