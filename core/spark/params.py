"""Parameters of estimators, with the names, defaults, setters and getters of Horovod's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pyspark.ml.param import Param, Params

from ringtune.errors import InvalidArgument
from ringtune.spark.backend import Backend, SparkBackend
from ringtune.spark.store import Store

COMMON: dict[str, Any] = {
    "num_proc": None, "model": None, "backend": None, "store": None, "optimizer": None, "loss": None,
    "loss_weights": None, "metrics": [], "feature_cols": None, "label_cols": None, "sample_weight_col": None,
    "validation": None, "gradient_compression": None, "batch_size": 32, "val_batch_size": None, "epochs": 1,
    "verbose": 1, "random_seed": None, "shuffle": True, "partitions_per_process": 10, "run_id": None,
    "train_steps_per_epoch": None, "validation_steps_per_epoch": None, "transformation_fn": None, "label_shapes": None,
    "inmemory_cache_all": False, "use_gpu": True, "backward_passes_per_step": 1,
}  # fmt: skip
"""Parameters of every estimator, with their defaults."""

WITHOUT_EFFECT: dict[str, Any] = {
    "callbacks": [], "continuous_cols": None, "categorical_cols": None, "compress_sparse_cols": False,
    "shuffle_buffer_size": None, "transformation_edit_fields": None, "transformation_removed_fields": None,
    "train_reader_num_workers": 2, "val_reader_num_workers": 2, "reader_pool_type": "thread", "mp_start_method": None,
    "tensorflow_dataset_prefetch_buffer_size": 0, "data_module": None, "train_minibatch_fn": None, "num_gpus": None,
    "loader_num_epochs": None, "terminate_on_nan": False, "debug_data_loader": False,
    "train_async_data_loader_queue_size": None, "val_async_data_loader_queue_size": None,
}  # fmt: skip
"""Parameters that Horovod's scripts may set and that mean nothing here: most are of Petastorm's reader. An estimator
that has a use for one names it among its own."""

_SETTERS = {
    "train_reader_num_workers": "TrainReaderNumWorker",
    "val_reader_num_workers": "ValReaderNumWorker",
    "shuffle_buffer_size": "ShufflingBufferSize",
}
"""Where Horovod's setters have other names than their parameters."""


def camel(name: str) -> str:
    """Return ``FeatureCols`` for ``feature_cols``."""
    return "".join(word.capitalize() for word in name.split("_"))


def define(kind: type[Params], names: Mapping[str, Any]) -> None:
    """Give a class parameters, with a setter and a getter for each.

    Args:
        kind: The class.
        names: Defaults by name.
    """
    for name in names:
        setattr(kind, name, Param(Params._dummy(), name, name.replace("_", " ")))
        for word in {camel(name), _SETTERS.get(name, camel(name))}:
            setattr(kind, f"set{word}", _setter(name))
            setattr(kind, f"get{word}", _getter(name))


def _setter(name: str) -> Any:
    def set_(self: Params, value: Any) -> Params:
        return self._set(**{name: value})

    set_.__doc__ = f"Set `{name}`; return this object."
    return set_


def _getter(name: str) -> Any:
    def get(self: Params) -> Any:
        return self.getOrDefault(name)

    get.__doc__ = f"Return `{name}`."
    return get


class EstimatorParams(Params):  # type: ignore[misc]
    """The parameters of an estimator, and what follows from them."""

    def take(self, given: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Set parameters.

        Args:
            given: Values by name.
            own: Further parameters of this class, with their defaults.

        Raises:
            InvalidArgument: A name is unknown, or a value is wrong.
        """
        known = {**COMMON, **WITHOUT_EFFECT, **own}
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise InvalidArgument(f"{type(self).__name__}: no such parameter: {', '.join(unknown)}")
        self._setDefault(**known)
        self._set(**{name: value for name, value in given.items() if value is not None})
        idle = [name for name, default in WITHOUT_EFFECT.items() if name not in own and self.value(name) != default]
        if idle:
            warnings.warn(f"{type(self).__name__}: no effect: {', '.join(idle)}", stacklevel=4)

    def value(self, name: str) -> Any:
        """Return a parameter."""
        return self.getOrDefault(name)

    def check(self) -> None:
        """Check the parameters before a training.

        Raises:
            InvalidArgument: One is missing or wrong; the message names it.
        """
        name = type(self).__name__
        for needed in ("model", "label_cols", "store"):
            if not self.value(needed):
                raise InvalidArgument(f"{name}: {needed} is missing")
        if not isinstance(self.value("store"), Store):
            raise InvalidArgument(f"{name}: store={self.value('store')!r}: make it by Store.create(path)")
        if self.value("backend") is not None and self.value("num_proc") is not None:
            raise InvalidArgument(f"{name}: give backend or num_proc, not both")
        for number in ("batch_size", "epochs", "backward_passes_per_step", "partitions_per_process"):
            if not isinstance(self.value(number), int) or self.value(number) < 1:
                raise InvalidArgument(f"{name}: {number}={self.value(number)!r}: expected a whole number of at least 1")
        validation = self.value("validation")
        fraction = isinstance(validation, int | float) and not isinstance(validation, bool) and 0 <= validation < 1
        if validation is not None and not isinstance(validation, str) and not fraction:
            raise InvalidArgument(
                f"{name}: validation={validation!r}: expected a part of the rows (0 <= part < 1) or a column's name"
            )

    def find_backend(self) -> Backend:
        """Return what training runs on."""
        given = self.value("backend")
        return given if given is not None else SparkBackend(self.value("num_proc"), verbose=self.value("verbose"))

    def find_columns(self, df: Any) -> tuple[list[str], list[str], list[str]]:
        """Return the columns of features and labels of a DataFrame, and the further ones of a training.

        Raises:
            InvalidArgument: One is not there.
        """
        labels = list(self.value("label_cols"))
        weight, validation = self.value("sample_weight_col"), self.value("validation")
        more = [name for name in (weight,) if name]
        split = [validation] if isinstance(validation, str) else []
        features = list(self.value("feature_cols") or [c for c in df.columns if c not in {*labels, *more, *split}])
        missing = [name for name in (*features, *labels, *more, *split) if name not in df.columns]
        if missing:
            raise InvalidArgument(
                f"{type(self).__name__}: the DataFrame has no column {', '.join(missing)}; it has "
                f"{', '.join(df.columns)}"
            )
        return features, labels, more


define(EstimatorParams, COMMON)
define(EstimatorParams, WITHOUT_EFFECT)
