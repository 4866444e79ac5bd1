"""The training that a `KerasEstimator` runs on every rank: Keras's ``fit`` with ringtune's optimizer and callbacks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from ringtune.spark.data import Columns, DataSet
from ringtune.spark.plan import Plan


def train(plan: Plan, data: DataSet, validation: DataSet | None) -> dict[str, Any]:
    """Train on this rank's share.

    Args:
        plan: The plan.
        data: Rows to train on.
        validation: Rows to validate with.

    Returns:
        On rank 0 the state and the history, else nothing.
    """
    import keras

    import ringtune.keras as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if plan.use_gpu:
        _choose_gpu(keras.backend.backend(), hvd.local_rank())
    given = cloudpickle.loads(plan.packed)
    model, optimizer, transformation = given["model"], keras.optimizers.get(given["optimizer"]), given[
        "transformation_fn"
    ]  # fmt: skip
    wrapped = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=plan.passes, compression=plan.compression)
    model.compile(
        optimizer=wrapped,
        loss=given["loss"],
        loss_weights=list(plan.loss_weights) if plan.loss_weights is not None else None,
        metrics=given["metrics"] or None,
    )
    first, history = 0, {}
    if plan.checkpoint and data.store.exists(plan.checkpoint):
        history = load_state(data.store.read(plan.checkpoint), model, wrapped)
        first = len(history["loss"])
    _scale(wrapped, size)

    def ready(columns: Columns) -> tuple[Any, ...]:
        batch = plan.batch(transformation(columns) if transformation is not None else columns)
        parts = (_one_or_all(batch.inputs), _one_or_all(batch.labels))
        return parts if batch.weights is None else (*parts, batch.weights)

    def rows() -> Iterator[tuple[Any, ...]]:
        for epoch in range(first, plan.epochs):
            yield from map(ready, share.batches(plan.batch_size, batches, plan.random(epoch, rank)))

    def held_rows(held: Any, count: int) -> Iterator[tuple[Any, ...]]:
        while True:  # one validation after the other
            for number, columns in enumerate(held.once(plan.val_batch_size)):
                if number < count:
                    yield ready(columns)

    share, batches = plan.share(data, rank, size), plan.batches_of(data, size)
    checked: dict[str, Any] = {}
    if validation is not None:
        count = plan.held_batches_of(validation, size)
        held = plan.share(validation, rank, size)
        checked = {"validation_data": held_rows(held, count), "validation_steps": count}

    class Keeper(keras.callbacks.Callback):  # type: ignore[misc]
        """Notes what an epoch gave; on rank 0 it writes the checkpoint."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            for name, value in (logs or {}).items():
                history.setdefault(name, []).append(float(value))
            if rank == 0 and plan.checkpoint:
                data.store.write(plan.checkpoint, _state(self.model, size, history))

    only_first = [given["checkpoint_callback"]] if rank == 0 and given["checkpoint_callback"] is not None else []
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        *given["callbacks"],
        *only_first,
        Keeper(),
    ]
    verbose = (2 if plan.verbose else 0) if rank == 0 else 0  # an executor's log is no terminal for a progress bar
    if first < plan.epochs:
        model.fit(
            rows(), epochs=plan.epochs, initial_epoch=first, steps_per_epoch=batches, callbacks=callbacks,
            verbose=verbose, **checked,
        )  # fmt: skip
    found = {} if rank else {"state": _state(model, size, history), "history": history}
    hvd.shutdown()
    return found


def load_state(content: bytes, model: Any, optimizer: Any = None) -> dict[str, list[float]]:
    """Load what a training has left into a model and its optimizer.

    Args:
        content: A checkpoint.
        model: The model.
        optimizer: Its optimizer.

    Returns:
        The history.
    """
    found = np.load(io.BytesIO(content), allow_pickle=False)
    model.set_weights([found[f"weight{number}"] for number in range(len(model.weights))])
    if optimizer is not None:
        optimizer.build(model.trainable_variables)
        for number, one in enumerate(optimizer.variables):
            one.assign(found[f"optimizer{number}"])
    history: dict[str, list[float]] = json.loads(str(found["history"]))
    return history


def _state(model: Any, size: int, history: dict[str, list[float]]) -> bytes:
    from ringtune.common.keras.variables import bring_up_to_date

    bring_up_to_date(model)
    _scale(model.optimizer, 1 / size)
    parts = {f"weight{number}": one for number, one in enumerate(model.get_weights())}
    parts |= {f"optimizer{number}": np.asarray(one) for number, one in enumerate(_values(model.optimizer))}
    _scale(model.optimizer, size)
    file = io.BytesIO()
    np.savez(file, history=np.array(json.dumps(history)), **parts)
    return file.getvalue()


def _values(optimizer: Any) -> list[Any]:
    import keras

    return [keras.ops.convert_to_numpy(one) for one in optimizer.variables]


def _one_or_all(found: list[Any]) -> Any:
    return found[0] if len(found) == 1 else tuple(found)


def _scale(optimizer: Any, factor: float) -> None:
    """Multiply the learning rate, where it is fixed and no schedule."""
    rate: Any = getattr(optimizer, "_learning_rate", None)
    if hasattr(rate, "assign"):
        rate.assign(rate * factor)


def _choose_gpu(backend: str, local_rank: int) -> None:
    """Let this rank use one of the host's GPUs, where there are any."""
    if backend == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            tf.config.set_visible_devices(gpus[local_rank % len(gpus)], "GPU")
    elif backend == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank % torch.cuda.device_count())
