"""A LightningModule as an estimator of Spark ML: ``TorchEstimator(...).fit(df)`` gives a ``TorchModel``."""

from ringtune.spark.lightning.estimator import TorchEstimator
from ringtune.spark.torch.model import TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
