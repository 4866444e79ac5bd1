"""`TorchEstimator`: fits a PyTorch model to a DataFrame on the ranks of a barrier stage."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from pyspark.ml import Estimator

from ringtune.errors import InvalidArgument
from ringtune.spark import data
from ringtune.spark.data import DataSet
from ringtune.spark.params import COMMON, WITHOUT_EFFECT, EstimatorParams, define
from ringtune.spark.persistence import Persistent
from ringtune.spark.torch import training
from ringtune.spark.torch.model import TorchModel
from ringtune.spark.torch.training import Plan

_OWN: dict[str, Any] = {"input_shapes": None, "loss_constructors": None}
_SEED = 1


class TorchEstimator(EstimatorParams, Estimator, Persistent):  # type: ignore[misc]
    """Trains a model on the rows of a DataFrame; arguments are Horovod's, all by keyword.

    The learning rate is multiplied by the number of ranks. `transformation_fn` gets the columns of a batch, arrays
    (rows, ...) by name, and returns them.

    Args:
        given: num_proc, model, backend, store, optimizer, loss (one function a label column, or ``loss_constructors``),
            loss_weights, metrics (a list of functions a label column), feature_cols, label_cols, input_shapes,
            label_shapes (with -1 for the rows), sample_weight_col, validation (a part of the rows or a column),
            batch_size, val_batch_size, epochs, backward_passes_per_step, shuffle, random_seed, run_id ...

    Raises:
        InvalidArgument: A parameter is unknown, or two exclude each other.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.take(given, {**COMMON, **WITHOUT_EFFECT, **_OWN})
        if self.value("loss") is not None and self.value("loss_constructors") is not None:
            raise InvalidArgument("TorchEstimator: give loss or loss_constructors, not both")

    def extra(self) -> Any:
        """Return what is saved beside the parameters: nothing."""
        return None

    def take_extra(self, extra: Any) -> None:
        """Take it."""

    def _fit(self, dataset: Any) -> TorchModel:
        self.check()
        features, labels, more = self.find_columns(dataset)
        store, backend = self.value("store"), self.value("backend") or self.find_backend()
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

    def fit_on_parquet(self, params: Mapping[Any, Any] | None = None, dataset_idx: int | None = None) -> TorchModel:
        """Train on what lies in the store already.

        Args:
            params: Parameters of this training alone.
            dataset_idx: Number of the data set.

        Raises:
            InvalidArgument: There are no Parquet files, or they lack a column.
        """
        if params:
            return self.copy(dict(params)).fit_on_parquet(dataset_idx=dataset_idx)  # type: ignore[no-any-return]
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
    ) -> TorchModel:
        features, labels, more = columns
        if not train.rows:
            raise InvalidArgument("TorchEstimator: there are no rows to train on")
        store = self.value("store")
        equal = [1 / len(labels)] * len(labels)
        run_id = self.value("run_id") or f"torch_{uuid.uuid4().hex[:12]}"
        plan = Plan(
            packed=self._packed(len(labels)),
            features=features,
            labels=labels,
            weight=more[0] if more else "",
            input_shapes=_one_each("input_shapes", self.value("input_shapes"), features),
            label_shapes=_one_each("label_shapes", self.value("label_shapes"), labels),
            loss_weights=_one_each("loss_weights", self.value("loss_weights"), labels) or equal,
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
        found = backend.run(training.train, (plan, train, val))[0]
        model, optimizer, *_ = cloudpickle.loads(plan.packed)
        training.load_state(found["state"], model, optimizer)
        return TorchModel(
            history=found["history"],
            model=model,
            optimizer=optimizer,
            feature_cols=features,
            label_cols=labels,
            input_shapes=plan.input_shapes,
            run_id=run_id,
        )

    def _packed(self, labels: int) -> bytes:
        model, optimizer = self.value("model"), self.value("optimizer")
        if optimizer is None:
            raise InvalidArgument("TorchEstimator: optimizer is missing")
        own = {id(parameter) for parameter in model.parameters()}
        if not all(id(one) in own for group in optimizer.param_groups for one in group["params"]):
            raise InvalidArgument("TorchEstimator: the optimizer was made with parameters of another model")
        losses = self.value("loss")
        made = self.value("loss_constructors")
        if losses is None and made is not None:
            losses = [one() for one in (made if isinstance(made, list | tuple) else [made])]
        losses = list(losses) if isinstance(losses, list | tuple) else [losses]
        if losses == [None] or len(losses) != labels:
            raise InvalidArgument(f"TorchEstimator: expected {labels} losses, one a label column, got {len(losses)}")
        metrics = self.value("metrics") or []
        groups = [list(one) if isinstance(one, list | tuple) else [one] for one in metrics]
        if groups and len(groups) != labels:
            raise InvalidArgument(f"TorchEstimator: expected {labels} lists of metrics, one a label column")
        packed: bytes = cloudpickle.dumps((model, optimizer, losses, groups, self.value("transformation_fn")))
        return packed


define(TorchEstimator, _OWN)


def _one_each(name: str, given: Sequence[Any] | None, columns: Sequence[str]) -> list[Any] | None:
    if given is None:
        return None
    if len(given) != len(columns):
        raise InvalidArgument(f"TorchEstimator: {name} has {len(given)} entries for the columns {', '.join(columns)}")
    return list(given)
