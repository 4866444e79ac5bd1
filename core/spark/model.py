"""`FrameworkModel`: a fitted model of any framework that adds its outputs to a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pyspark.ml import Model
from pyspark.ml.param import Params

from ringtune.errors import InvalidArgument
from ringtune.spark import data
from ringtune.spark.params import define
from ringtune.spark.persistence import Persistent
from ringtune.spark.plan import arrays

_PARAMS: dict[str, Any] = {
    "history": None, "model": None, "optimizer": None, "feature_cols": None, "label_cols": None, "input_shapes": None,
    "run_id": None, "output_cols": None,
}  # fmt: skip

Prediction = Callable[[list[Any]], list[Any]]
"""From a model's inputs, arrays (rows, ...), to its outputs, arrays (rows, ...)."""


class FrameworkModel(Model, Params, Persistent):  # type: ignore[misc]
    """A model that an estimator has trained; a subclass says how its framework predicts.

    Args:
        given: history, model, optimizer, feature_cols, label_cols, input_shapes, run_id, output_cols (default:
            ``<label>__output``).

    Attributes:
        OWN: Further parameters, with their defaults; each is defined on the class by `params.define`.
    """

    OWN: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self._setDefault(**_PARAMS, **self.OWN)
        self._set(**{name: value for name, value in given.items() if value is not None})

    def prediction(self) -> Callable[[], Prediction]:
        """Return what makes the prediction in an executor, with the model in it, pickled by cloudpickle."""
        raise NotImplementedError

    def _transform(self, dataset: Any) -> Any:
        from pyspark.ml.functions import array_to_vector, vector_to_array
        from pyspark.sql.functions import col, pandas_udf, struct

        features, labels = list(self.getOrDefault("feature_cols")), list(self.getOrDefault("label_cols"))
        names = self.getOrDefault("output_cols") or [f"{label}__output" for label in labels]
        missing = [name for name in features if name not in dataset.columns]
        if missing:
            raise InvalidArgument(f"transform: the DataFrame has no column {', '.join(missing)}")
        vectors = data.vector_columns(dataset)
        given = struct(*(vector_to_array(col(name)).alias(name) if name in vectors else col(name) for name in features))
        kind = ", ".join(f"`{name}` array<double>" for name in names)
        predict = pandas_udf(_on_frames(self.prediction(), features, self.getOrDefault("input_shapes"), names), kind)
        found = dataset.withColumn("_ringtune_outputs", predict(given))
        types = {one.name: one.dataType for one in dataset.schema.fields}
        for label, name in zip(labels, names, strict=True):
            output = col("_ringtune_outputs").getField(name)
            number = label in types and label not in vectors and types[label].typeName() != "array"
            found = found.withColumn(name, _as_label(output, types[label]) if number else array_to_vector(output))
        return found.drop("_ringtune_outputs")


define(FrameworkModel, _PARAMS)


def _as_label(output: Any, kind: Any) -> Any:
    """Return an output in the label's type: its number; of several the place of the largest, which is the class."""
    from pyspark.sql.functions import array_max, array_position, size, when

    largest = (array_position(output, array_max(output)) - 1).cast(kind)
    return when(size(output) == 1, output[0].cast(kind)).otherwise(largest)


def _on_frames(make: Callable[[], Prediction], features: Sequence[str], shapes: Any, names: Sequence[str]) -> Any:
    def predict(frames: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import pandas as pd

        predicted = make()
        for frame in frames:
            columns: Mapping[str, Any] = {name: _stacked(frame[name]) for name in features}
            outputs = predicted(arrays(dict(columns), features, shapes))
            rows = [np.asarray(one, dtype=np.float64).reshape(len(frame), -1).tolist() for one in outputs]
            yield pd.DataFrame(dict(zip(names, rows, strict=True)))

    # Spark tells the kind of a function on batches by its annotations.
    import pandas as pd

    predict.__annotations__ = {"frames": Iterator[pd.DataFrame], "return": Iterator[pd.DataFrame]}
    return predict


def _stacked(column: Any) -> Any:
    """Return a column of numbers or of lists as an array (rows,) or (rows, n)."""
    import numpy as np

    first = column.iloc[0] if len(column) else 0.0
    return np.stack(column.to_list()) if np.ndim(first) else column.to_numpy()
