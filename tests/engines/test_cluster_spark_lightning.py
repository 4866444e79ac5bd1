"""Lightning's `TorchEstimator` on real Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed; `make test-engines` makes an environment")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java (Debian: openjdk-17-jre-headless)", allow_module_level=True)
lightning = pytest.importorskip("lightning.pytorch")

import torch  # noqa: E402

from ringtune.spark.lightning import TorchEstimator, TorchModel  # noqa: E402
from ringtune.spark.store import Store  # noqa: E402
from tests.engines import cases  # noqa: E402
from tests.engines.test_cluster_spark import connect, disconnect  # noqa: E402
from tests.engines.test_cluster_spark_estimator import LR, alone, write_digits  # noqa: E402

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


def module(rate: float = 2 * LR) -> Any:
    """Return a module whose class travels by value, as one from a notebook does."""

    class Digits(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = cases.model().float()

        def forward(self, images: Any) -> Any:
            return self.net(images)

        def training_step(self, batch: Any, number: int) -> Any:
            loss = torch.nn.functional.cross_entropy(self(batch["image"]), batch["digit"])
            self.log("loss", loss, on_epoch=True, on_step=False)
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            right = (self(batch["image"]).argmax(1) == batch["digit"]).float().mean()
            self.log("right", right, on_epoch=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=rate, momentum=0.9)

    return Digits()


def estimator(place: Any, **more: Any) -> TorchEstimator:
    given = {
        "num_proc": 2,
        "model": module(),
        "feature_cols": ["image"],
        "label_cols": ["digit"],
        "store": place,
        "batch_size": cases.ROWS // 2,
        "epochs": 3,
        "shuffle": False,
        "verbose": 0,
        "random_seed": 3,
    }
    return TorchEstimator(**{**given, **more})


def test_training_follows_that_of_one_process(spark: Any, digits: str, tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    fitted = estimator(store).fit(spark.read.parquet(digits))
    assert [one["loss"] for one in fitted.getHistory()] == pytest.approx(alone(3), rel=1e-4)
    assert [one["epoch"] for one in fitted.getHistory()] == [0, 1, 2]
    # A run that is there goes on where Lightning's checkpoint ends.
    again = estimator(store, run_id=fitted.getRunId(), epochs=5).fit(spark.read.parquet(digits))
    assert [one["loss"] for one in again.getHistory()] == pytest.approx(alone(5), rel=1e-4)


def test_outputs_are_added_in_batches_and_pipelines_are_kept(spark: Any, digits: str, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline, PipelineModel

    class Stopped(lightning.Callback):
        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = trainer.current_epoch == 3

    store, frame = Store.create(str(tmp_path / "store")), spark.read.parquet(digits)
    more = {
        "model": module(0.3),
        "callbacks": [Stopped()],
        "trainer_args": {"gradient_clip_val": 5.0},
        "batch_size": 32,
        "epochs": 6,
        "backward_passes_per_step": 2,
        "shuffle": True,
        "validation": "held",
    }
    fitted = Pipeline(stages=[estimator(store, **more)]).fit(frame)
    history = fitted.stages[0].getHistory()
    assert len(history) == 4 and history[-1]["right"] > 0.8
    fitted.write().overwrite().save(str(tmp_path / "fitted"))
    loaded = PipelineModel.load(str(tmp_path / "fitted"))
    assert isinstance(loaded.stages[0], TorchModel) and loaded.stages[0].getHistory() == history
    found = loaded.transform(frame).select("digit", "digit__output").collect()
    assert len(found) == cases.ROWS
    assert sum(row.digit == row.digit__output for row in found) / len(found) > 0.8
    estimator(store, **more).save(str(tmp_path / "unfitted"))
    assert TorchEstimator.load(str(tmp_path / "unfitted")).getTrainerArgs() == {"gradient_clip_val": 5.0}


def test_on_what_lies_in_the_store(spark: Any, digits: str, tmp_path: Path) -> None:
    store = Store.create(str(tmp_path), save_runs=False)
    spark.read.parquet(digits).write.parquet(store.get_train_data_path(7))
    fitted = estimator(store).fit_on_parquet(dataset_idx=7)
    assert [one["loss"] for one in fitted.getHistory()] == pytest.approx(alone(3), rel=1e-4)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": torch.nn.Linear(1, 1)}, "expected a LightningModule, got a Linear"),
        ({"loss": torch.nn.CrossEntropyLoss()}, "loss is the LightningModule's own"),
        ({"loss_weights": [1.0]}, "loss_weights is the LightningModule's own"),
    ],
)
def test_wrong_parameters(spark: Any, digits: str, tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        estimator(Store.create(str(tmp_path)), **more).fit(spark.read.parquet(digits))
