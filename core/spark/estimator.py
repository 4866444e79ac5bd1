"""What the estimators of all frameworks share: from parameters and a DataFrame to a training on every rank."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pyspark.ml import Estimator

from ringtune.errors import InvalidArgument
from ringtune.spark import data
from ringtune.spark.data import DataSet
from ringtune.spark.params import EstimatorParams
from ringtune.spark.persistence import Persistent
from ringtune.spark.plan import Plan

_SEED = 1


class FrameworkEstimator(EstimatorParams, Estimator, Persistent):  # type: ignore[misc]
    """Trains a model on the rows of a DataFrame; a subclass says how its framework does.

    `transformation_fn` gets the columns of a batch, arrays (rows, ...) by name, and returns them.

    Args:
        given: The parameters, by keyword.

    Attributes:
        FRAMEWORK: Name of the framework, with which the names of runs begin.
        OWN: Further parameters, with their defaults; each is defined on the class by `params.define`.

    Raises:
        InvalidArgument: A parameter is unknown, or two exclude each other.
    """

    FRAMEWORK: ClassVar[str] = ""
    OWN: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.take(given, self.OWN)

    def pack(self, labels: int) -> bytes:
        """Return the model with what is needed to train it, pickled.

        Args:
            labels: Number of label columns.

        Raises:
            InvalidArgument: A parameter is missing or wrong.
        """
        raise NotImplementedError

    def trainer(self) -> Callable[[Plan, DataSet, DataSet | None], dict[str, Any]]:
        """Return what every rank calls; what it returns on rank 0 comes to `fitted`."""
        raise NotImplementedError

    def fitted(self, plan: Plan, found: Mapping[str, Any], **about: Any) -> Any:
        """Return the fitted model.

        Args:
            plan: What was done.
            found: What the training returned on rank 0.
            about: Parameters of the fitted model: feature_cols, label_cols, run_id.
        """
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        """Return further variables of the ranks."""
        return {}

    def shapes_of_inputs(self, features: Sequence[str]) -> list[Any] | None:
        """Return the shapes of the model's inputs; None: as the columns are."""
        return self.one_each("input_shapes", features)

    def one_each(self, name: str, columns: Sequence[str]) -> list[Any] | None:
        """Return a parameter that has one entry a column; None where it is not set.

        Raises:
            InvalidArgument: It has another number of entries.
        """
        given = self.value(name)
        if given is None:
            return None
        if len(given) != len(columns):
            raise InvalidArgument(
                f"{type(self).__name__}: {name} has {len(given)} entries for the columns {', '.join(columns)}"
            )
        return list(given)

    def _fit(self, dataset: Any) -> Any:
        self.check()
        features, labels, more = self.find_columns(dataset)
        store, backend = self.value("store"), self.find_backend()
        partitions = backend.num_processes() * self.value("partitions_per_process")
        validation, columns = self.value("validation"), [*features, *labels, *more]
        held = None
        if isinstance(validation, str):
            dataset, held = dataset.filter(f"NOT ({validation} > 0)"), dataset.filter(f"{validation} > 0")
        elif validation:
            dataset, held = dataset.randomSplit([1 - validation, validation], self.value("random_seed") or _SEED)
        index = uuid.uuid4().int % 10**9  # fits that run beside one another must not write into one folder
        train = data.prepare(dataset, store.get_train_data_path(index), store, columns, partitions)
        val = (
            data.prepare(held, store.get_val_data_path(index), store, columns, partitions) if held is not None else None
        )
        return self._train(backend, train, val, (features, labels, more))

    def fit_on_parquet(self, params: Mapping[Any, Any] | None = None, dataset_idx: int | None = None) -> Any:
        """Train on what lies in the store already.

        Args:
            params: Parameters of this training alone.
            dataset_idx: Number of the data set.

        Raises:
            InvalidArgument: There are no Parquet files, or they lack a column.
        """
        if params:
            return self.copy(dict(params)).fit_on_parquet(dataset_idx=dataset_idx)
        self.check()
        store = self.value("store")
        train = data.open_folder(store, store.get_train_data_path(dataset_idx))
        held = store.get_val_data_path(dataset_idx)
        val = data.open_folder(store, held) if self.value("validation") and store.is_parquet_dataset(held) else None

        class Columns:
            columns = store.get_parquet_dataset(store.get_train_data_path(dataset_idx)).schema.names

        return self._train(self.find_backend(), train, val, self.find_columns(Columns))

    def _train(
        self, backend: Any, train: DataSet, val: DataSet | None, columns: tuple[list[str], list[str], list[str]]
    ) -> Any:
        features, labels, more = columns
        if not train.rows:
            raise InvalidArgument(f"{type(self).__name__}: there are no rows to train on")
        store = self.value("store")
        run_id = self.value("run_id") or f"{self.FRAMEWORK}_{uuid.uuid4().hex[:12]}"
        plan = Plan(
            packed=self.pack(len(labels)),
            features=features,
            labels=labels,
            weight=more[0] if more else "",
            input_shapes=self.shapes_of_inputs(features),
            label_shapes=self.one_each("label_shapes", labels),
            loss_weights=self.one_each("loss_weights", labels),
            batch_size=self.value("batch_size"),
            val_batch_size=self.value("val_batch_size") or self.value("batch_size"),
            epochs=self.value("epochs"),
            steps=self.value("train_steps_per_epoch"),
            val_steps=self.value("validation_steps_per_epoch"),
            passes=self.value("backward_passes_per_step"),
            compression=self.value("gradient_compression"),
            shuffle=self.value("shuffle"),
            seed=self.value("random_seed") or _SEED,
            keeps=self.value("inmemory_cache_all"),
            use_gpu=self.value("use_gpu"),
            verbose=self.value("verbose"),
            checkpoint=store.get_checkpoint_path(run_id) if store.saving_runs() else "",
        )
        found = backend.run(self.trainer(), (plan, train, val), env=self.variables())[0]
        return self.fitted(plan, found, feature_cols=features, label_cols=labels, run_id=run_id)
