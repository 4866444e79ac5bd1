"""A model of Keras 3 as an estimator of Spark ML: ``KerasEstimator(...).fit(df)`` gives a ``KerasModel``."""

from ringtune.spark.keras.estimator import KerasEstimator
from ringtune.spark.keras.model import KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
