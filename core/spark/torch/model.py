"""`TorchModel`: a fitted model that adds its outputs to a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from pyspark.ml import Model
from pyspark.ml.param import Params

from ringtune.errors import InvalidArgument
from ringtune.spark import data
from ringtune.spark.params import define
from ringtune.spark.persistence import Persistent

_PARAMS: dict[str, Any] = {
    "history": None, "model": None, "optimizer": None, "feature_cols": None, "label_cols": None, "input_shapes": None,
    "run_id": None, "output_cols": None,
}  # fmt: skip


class TorchModel(Model, Params, Persistent):  # type: ignore[misc]
    """A PyTorch model that a `TorchEstimator` has trained.

    Args:
        given: history (a list of ``{"epoch", "train": {"loss", "all_metrics"}, "validation"}``), model, optimizer,
            feature_cols, label_cols, input_shapes, run_id, output_cols (default: ``<label>__output``).
    """

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self._setDefault(**_PARAMS)
        self._set(**{name: value for name, value in given.items() if value is not None})

    def extra(self) -> Any:
        """Return what is saved beside the parameters: nothing."""
        return None

    def take_extra(self, extra: Any) -> None:
        """Take it."""

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
        packed = cloudpickle.dumps(self.getOrDefault("model"))
        kind = ", ".join(f"`{name}` array<double>" for name in names)
        predict = pandas_udf(_predictor(packed, features, self.getOrDefault("input_shapes"), names), kind)
        found = dataset.withColumn("_ringtune_outputs", predict(given))
        types = {one.name: one.dataType for one in dataset.schema.fields}
        for label, name in zip(labels, names, strict=True):
            output = col("_ringtune_outputs").getField(name)
            number = label in types and label not in vectors and types[label].typeName() != "array"
            found = found.withColumn(name, _as_label(output, types[label]) if number else array_to_vector(output))
        return found.drop("_ringtune_outputs")


define(TorchModel, _PARAMS)


def _as_label(output: Any, kind: Any) -> Any:
    """Return an output in the label's type: its number; of several the place of the largest, which is the class."""
    from pyspark.sql.functions import array_max, array_position, size, when

    largest = (array_position(output, array_max(output)) - 1).cast(kind)
    return when(size(output) == 1, output[0].cast(kind)).otherwise(largest)


def _predictor(packed: bytes, features: Sequence[str], shapes: Any, names: Sequence[str]) -> Any:
    def predict(frames: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd
        import torch

        from ringtune.spark.torch.training import _shaped, _tensor, outputs_of

        model = cloudpickle.loads(packed).eval()
        for frame in frames:
            inputs = [_tensor(stacked(frame[name])) for name in features]
            if shapes is not None:
                inputs = [_shaped(one, shape, name) for one, shape, name in zip(inputs, shapes, features, strict=True)]
            with torch.no_grad():
                outputs = outputs_of(model(*inputs))
            rows = [one.reshape(len(frame), -1).double().tolist() for one in outputs]
            yield pd.DataFrame(dict(zip(names, rows, strict=True)))

    # Spark tells the kind of a function on batches by its annotations.
    import pandas as pd

    predict.__annotations__ = {"frames": Iterator[pd.DataFrame], "return": Iterator[pd.DataFrame]}
    return predict


def stacked(column: Any) -> Any:
    """Return a column of numbers or of lists as an array (rows,) or (rows, n)."""
    import numpy as np

    first = column.iloc[0] if len(column) else 0.0
    return np.stack(column.to_list()) if np.ndim(first) else column.to_numpy()
