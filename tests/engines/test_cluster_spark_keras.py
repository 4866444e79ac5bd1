"""`KerasEstimator` and `KerasModel` on real Spark; Keras runs on torch here, which this environment has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed; `make test-engines` makes an environment")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java (Debian: openjdk-17-jre-headless)", allow_module_level=True)
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")

from ringtune.spark.keras import KerasEstimator, KerasModel  # noqa: E402
from ringtune.spark.store import Store  # noqa: E402
from tests.engines import cases  # noqa: E402
from tests.engines.test_cluster_spark import connect, disconnect  # noqa: E402
from tests.engines.test_cluster_spark_estimator import LR, write_digits  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    context = connect("local[2]", tmp_path_factory.mktemp("spark"))
    session = SparkSession(context)
    yield session
    session.stop()
    disconnect(context)


@pytest.fixture(scope="module")
def digits(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_digits(spark, str(tmp_path_factory.mktemp("digits") / "digits.parquet"))


def model() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.layers.Input((8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(32, "tanh"),
            keras.layers.Dense(10),
        ]
    )


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def estimator(place: Any, **more: Any) -> KerasEstimator:
    given = {
        "num_proc": 2,
        "model": model(),
        "optimizer": keras.optimizers.SGD(LR, momentum=0.9),
        "loss": loss(),
        "metrics": ["accuracy"],
        "feature_cols": ["image"],
        "label_cols": ["digit"],
        "store": place,
        "batch_size": cases.ROWS // 2,
        "epochs": 3,
        "shuffle": False,
        "verbose": 0,
        "random_seed": 3,
    }
    return KerasEstimator(**{**given, **more})


def alone(epochs: int) -> list[float]:
    """Return the loss of each step of one process on all rows, with the learning rate of two ranks."""
    images, targets = (one.numpy() for one in cases.digits())
    net = model()
    net.compile(keras.optimizers.SGD(2 * LR, momentum=0.9), loss())
    inputs = images.reshape(-1, 8, 8).astype(np.float32)
    found: list[float] = net.fit(
        inputs, targets, batch_size=cases.ROWS, epochs=epochs, shuffle=False, verbose=0
    ).history["loss"]
    return found


def test_training_follows_that_of_one_process(spark: Any, digits: str, tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    fitted = estimator(store).fit(spark.read.parquet(digits))
    assert fitted.getHistory()["loss"] == pytest.approx(alone(3), rel=1e-4)
    assert set(fitted.getHistory()) == {"loss", "accuracy"}
    # A run that is there goes on, momentum and learning rate included.
    again = estimator(store, run_id=fitted.getRunId(), epochs=5).fit(spark.read.parquet(digits))
    assert again.getHistory()["loss"] == pytest.approx(alone(5), rel=1e-4)


def test_outputs_are_added_in_batches_and_pipelines_are_kept(spark: Any, digits: str, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline, PipelineModel

    class Scaled(keras.layers.Layer):
        """A layer that Keras finds by `custom_objects` alone."""

        def call(self, inputs: Any) -> Any:
            return inputs * 2.0 - 1.0

    class Noted(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["double"] = 2.0 * epoch

    net = keras.Sequential(
        [keras.layers.Input((64,)), Scaled(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    )
    store, frame = Store.create(str(tmp_path / "store")), spark.read.parquet(digits)
    more = {
        "model": net,
        "custom_objects": {"Scaled": Scaled},
        "callbacks": [Noted()],
        "optimizer": "adam",
        "batch_size": 32,
        "epochs": 4,
        "shuffle": True,
        "validation": "held",
    }
    fitted = Pipeline(stages=[estimator(store, **more)]).fit(frame)
    history = fitted.stages[0].getHistory()
    assert history["val_accuracy"][-1] > 0.8 and history["double"] == [0.0, 2.0, 4.0, 6.0]
    fitted.write().overwrite().save(str(tmp_path / "fitted"))
    loaded = PipelineModel.load(str(tmp_path / "fitted"))
    assert isinstance(loaded.stages[0], KerasModel) and loaded.stages[0].getHistory() == history
    found = loaded.transform(frame).select("digit", "digit__output").collect()
    assert len(found) == cases.ROWS
    assert sum(row.digit == row.digit__output for row in found) / len(found) > 0.8
    estimator(store, **more).save(str(tmp_path / "unfitted"))
    read = KerasEstimator.load(str(tmp_path / "unfitted"))
    assert read.getBatchSize() == 32 and len(read.getModel().layers) == 3


def test_several_inputs_labels_and_weights_on_parquet(spark: Any, digits: str, tmp_path: Path) -> None:
    from pyspark.sql.functions import col, lit

    image, more = keras.layers.Input((64,), name="pixels"), keras.layers.Input((1,), name="more")
    both = keras.layers.Concatenate()([image, more])
    net = keras.Model([image, more], [keras.layers.Dense(10)(both), keras.layers.Dense(1)(both)])
    store = Store.create(str(tmp_path), save_runs=False)
    spark.read.parquet(digits).select(
        "image", lit(1.0).alias("one"), "digit", (col("digit") / 10.0).alias("part"), lit(0.5).alias("weight")
    ).write.parquet(store.get_train_data_path(3))
    fitted = estimator(
        store,
        model=net,
        optimizer=keras.optimizers.SGD(0.01),
        loss=[loss(), lambda label, output: keras.ops.mean(keras.ops.square(label - output), -1)],
        loss_weights=[1.0, 0.5],
        metrics=[],
        feature_cols=["image", "one"],
        label_cols=["digit", "part"],
        label_shapes=[[-1], [-1, 1]],
        sample_weight_col="weight",
        batch_size=64,
    ).fit_on_parquet(dataset_idx=3)
    assert fitted.getHistory()["loss"][-1] < fitted.getHistory()["loss"][0]
    assert not (tmp_path / "runs").exists()
    row = fitted.transform(spark.read.parquet(store.get_train_data_path(3))).first()
    assert isinstance(row["digit__output"], int) and isinstance(row["part__output"], float)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": object()}, "expected a model of Keras 3, got a object"),
        ({"optimizer": None}, "optimizer is missing"),
        ({"label_cols": ["digit", "held"]}, "the model has 1 outputs for 2 label columns"),
        ({"feature_cols": ["image", "held"]}, "the model has 1 inputs for the columns image, held"),
    ],
)
def test_wrong_parameters(spark: Any, digits: str, tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        estimator(Store.create(str(tmp_path)), **more).fit(spark.read.parquet(digits))
