"""`TorchEstimator` and `TorchModel` on real Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringtune.errors import InvalidArgument, RankFailed

pytest.importorskip("pyspark", reason="pyspark is not installed; `make test-engines` makes an environment")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java (Debian: openjdk-17-jre-headless)", allow_module_level=True)
torch = pytest.importorskip("torch")

from ringtune.spark.backend import Backend, SparkBackend  # noqa: E402
from ringtune.spark.store import Store  # noqa: E402
from ringtune.spark.torch import TorchEstimator, TorchModel  # noqa: E402
from tests.engines import cases  # noqa: E402
from tests.engines.test_cluster_spark import connect, disconnect  # noqa: E402

pytestmark = pytest.mark.slow
LR = 0.25


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


def write_digits(spark: Any, path: str) -> str:
    """Write Parquet files with the digits: image (a list of 64), digit, held (1 in every eighth row)."""
    images, targets = cases.digits()
    rows = [(image.tolist(), int(digit), int(number % 8 == 0)) for number, (image, digit) in
            enumerate(zip(images, targets, strict=True))]  # fmt: skip
    frame = spark.createDataFrame(rows, "image array<double>, digit long, held int")
    frame.coalesce(1).write.parquet(path)
    return path


def accuracy(output: Any, label: Any) -> Any:
    return (output.argmax(1) == label).float().mean()


def estimator(place: Any, **more: Any) -> TorchEstimator:
    model = cases.model().float()
    given = {
        "num_proc": 2,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9),
        "loss": torch.nn.CrossEntropyLoss(),
        "metrics": [[accuracy]],
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


def alone(epochs: int) -> list[float]:
    """Return the loss before each step of one process on all rows, with the learning rate of two ranks."""
    images, targets = cases.digits()
    model = cases.model().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=2 * LR, momentum=0.9)
    found = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images.float()), targets)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_training_follows_that_of_one_process(spark: Any, digits: str, tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    model = estimator(store).fit(spark.read.parquet(digits))
    assert [one["train"]["loss"] for one in model.getHistory()] == pytest.approx(alone(3), rel=1e-4)
    assert set(model.getHistory()[0]["train"]["all_metrics"][0]) == {"accuracy"}
    # What is Parquet already is not written once more, and the learning rate is the one that was given.
    assert not list(tmp_path.glob("intermediate_*"))
    assert model.getOptimizer().param_groups[0]["lr"] == pytest.approx(LR)
    # A run that is there goes on.
    again = estimator(store, run_id=model.getRunId(), epochs=5).fit(spark.read.parquet(digits))
    assert [one["train"]["loss"] for one in again.getHistory()] == pytest.approx(alone(5), rel=1e-4)


def test_outputs_are_added_in_batches_and_pipelines_are_kept(spark: Any, digits: str, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline, PipelineModel

    store, frame = Store.create(str(tmp_path / "store")), spark.read.parquet(digits)
    more = {"batch_size": 32, "epochs": 4, "shuffle": True, "validation": "held", "feature_cols": ["image"]}
    fitted = Pipeline(stages=[estimator(store, **more)]).fit(frame)
    history = fitted.stages[0].getHistory()
    assert history[-1]["validation"]["all_metrics"][0]["accuracy"] > 0.85
    fitted.write().overwrite().save(str(tmp_path / "fitted"))
    loaded = PipelineModel.load(str(tmp_path / "fitted"))
    assert isinstance(loaded.stages[0], TorchModel) and loaded.stages[0].getHistory() == history
    found = loaded.transform(frame).select("digit", "digit__output").collect()
    assert len(found) == cases.ROWS
    assert sum(row.digit == row.digit__output for row in found) / len(found) > 0.85
    unfitted = estimator(store, **more)
    unfitted.save(str(tmp_path / "unfitted"))
    assert TorchEstimator.load(str(tmp_path / "unfitted")).getBatchSize() == 32


def test_vectors_weights_and_several_labels(spark: Any, digits: str, tmp_path: Path) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql.functions import col, lit

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(64, 10), torch.nn.Linear(64, 1)

        def forward(self, images: Any) -> Any:
            flat = images.flatten(1)
            return self.one(flat), self.two(flat)

    class Plain(torch.optim.Optimizer):
        """An optimizer without a learning rate, and with an argument that it needs."""

        def __init__(self, params: Any, size: float) -> None:
            super().__init__(params, {"size": size})

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for one in group["params"]:
                    one.data -= group["size"] * one.grad

    model = Two()
    frame = spark.read.parquet(digits).select(
        array_to_vector("image").alias("image"), "digit", (col("digit") / 10.0).alias("part"), lit(1.0).alias("weight")
    )
    fitted = estimator(
        Store.create(str(tmp_path)),
        model=model,
        optimizer=Plain(model.parameters(), size=0.05),
        loss=[torch.nn.functional.cross_entropy, torch.nn.functional.mse_loss],
        label_cols=["digit", "part"],
        input_shapes=[[-1, 1, 8, 8]],
        label_shapes=[[-1], [-1, 1]],
        metrics=[],
        sample_weight_col="weight",
        validation=0.25,
        batch_size=64,
    ).fit(frame)
    assert len(list(tmp_path.glob("intermediate_train_data.*"))) == 1
    history = fitted.getHistory()
    assert history[-1]["train"]["loss"] < history[0]["train"]["loss"] and "validation" in history[0]
    row = fitted.transform(frame).first()
    assert isinstance(row["digit__output"], int) and isinstance(row["part__output"], float)


def test_rows_are_predicted_in_batches(spark: Any) -> None:
    class Rows(torch.nn.Module):
        def forward(self, column: Any) -> Any:
            return torch.full((len(column), 1), float(len(column)))

    frame = spark.createDataFrame([(float(row), 0.0) for row in range(200)], "x double, y double").coalesce(1)
    model = TorchModel(model=Rows(), feature_cols=["x"], label_cols=["y"]).setOutputCols(["rows"])
    assert {row.rows for row in model.transform(frame).collect()} == {200.0}


def test_on_what_lies_in_the_store_by_another_backend(spark: Any, digits: str, tmp_path: Path) -> None:
    class Counted(Backend):
        def __init__(self) -> None:
            self.calls, self.inner = 0, SparkBackend(2, verbose=0)

        def num_processes(self) -> int:
            return 2

        def run(self, *arguments: Any, **options: Any) -> list[Any]:
            self.calls += 1
            return self.inner.run(*arguments, **options)

    store, backend = Store.create(str(tmp_path), save_runs=False), Counted()
    spark.read.parquet(digits).write.parquet(store.get_train_data_path(7))
    model = estimator(store, num_proc=None, backend=backend).fit_on_parquet(dataset_idx=7)
    assert backend.calls == 1 and [one["train"]["loss"] for one in model.getHistory()] == pytest.approx(
        alone(3), rel=1e-4
    )
    assert not (tmp_path / "runs").exists()
    with pytest.raises(InvalidArgument, match="there are no Parquet files"):
        estimator(store).fit_on_parquet(dataset_idx=8)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"validation": 1.5}, "validation=1.5"),
        ({"backend": object()}, "give backend or num_proc, not both"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
        ({"feature_cols": ["picture"]}, "has no column picture"),
        ({"loss": [torch.nn.CrossEntropyLoss()] * 2}, "expected 1 losses"),
        ({"input_shapes": [[-1, 8, 8], [-1]]}, "input_shapes has 2 entries"),
        ({"optimizer": torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)}, "parameters of another model"),
        ({"store": "/data"}, "make it by Store.create"),
    ],
)
def test_wrong_parameters(spark: Any, digits: str, tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        estimator(Store.create(str(tmp_path)), **more).fit(spark.read.parquet(digits))


def test_an_input_that_does_not_fit_the_model_is_named(spark: Any, digits: str, tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"column 'image' has 64 numbers a row, .* shape \(-1, 63\)"):
        estimator(Store.create(str(tmp_path)), input_shapes=[[-1, 63]]).fit(spark.read.parquet(digits))


def test_unknown_and_excluding_parameters() -> None:
    with pytest.raises(ValueError, match="no such parameter: learning_rate"):
        TorchEstimator(learning_rate=1.0)
    with pytest.raises(ValueError, match="loss or loss_constructors"):
        TorchEstimator(loss=torch.nn.CrossEntropyLoss(), loss_constructors=torch.nn.CrossEntropyLoss)
    with pytest.warns(UserWarning, match="no effect: reader_pool_type"):
        assert TorchEstimator(reader_pool_type="process").setEpochs(4).getEpochs() == 4
