"""What ranks do with Keras, whatever its version and backend: `keras_of` says which names are tested.

Values are small whole numbers, so sums are exact.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np


def keras_of(front: str) -> tuple[Any, Any]:
    """Return the front end and the Keras of one of ``"keras"``, ``"tensorflow.keras"``."""
    if front == "keras":
        import keras

        import ringtune.keras as hvd

        return hvd, keras
    import tensorflow as tf

    import ringtune.tensorflow.keras as hvd

    return hvd, tf.keras


def open_session(front: str) -> tuple[int, int]:
    hvd, _ = keras_of(front)
    hvd.init(process_sets="dynamic")
    return hvd.rank(), hvd.size()


def mean(hvd: ModuleType) -> float:
    """Return the mean of rank + 1 over the ranks."""
    return float(hvd.size() + 1) / 2


def line(keras: Any, optimizer: Any, start: float = 0.0, **options: Any) -> Any:
    """Return a model of one weight whose gradient is the mean of its inputs."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(start))
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(optimizer, lambda wanted, found: found, **options)
    return model


def weight(model: Any) -> float:
    return float(model.get_weights()[0].item())


def fit(model: Any, rank: int, rows: int = 4, **options: Any) -> Any:
    return model.fit(np.full((rows, 1), rank + 1.0), np.zeros((rows, 1)), batch_size=4, verbose=0, **options)


def iterations(optimizer: Any) -> int:
    return int(np.array(optimizer.iterations))


def applied(front: str) -> None:
    """``fit`` and ``apply_gradients`` reduce, whatever the operation; the state of the given optimizer is kept."""
    hvd, keras = keras_of(front)
    rank, average = hvd.rank(), mean(hvd)
    for op, factor in ((hvd.Average, 1), (hvd.Sum, hvd.size())):
        given = keras.optimizers.SGD(1.0, momentum=0.5)
        optimizer = hvd.DistributedOptimizer(given, op=op)
        assert type(optimizer).__name__ == type(given).__name__ and isinstance(optimizer, type(given))
        model = line(keras, optimizer)
        fit(model, rank)
        assert weight(model) == -average * factor
        fit(model, rank)
        assert weight(model) == -2.5 * average * factor and iterations(optimizer) == 2
    # A trained optimizer that is wrapped goes on with its momentum.
    plain = keras.optimizers.SGD(1.0, momentum=0.5)
    model = line(keras, plain)
    fit(model, 3)
    assert weight(model) == -4
    model.compile(hvd.DistributedOptimizer(plain), lambda wanted, found: found)
    fit(model, rank)
    assert weight(model) == -4 - 2 - average and iterations(model.optimizer) == 2


def wrapped_as_horovod_does(front: str) -> tuple[float, float]:
    """Return the weights after one step: of Horovod's way of wrapping, and of ours.

    Horovod derives a class that reduces in ``compute_gradients`` and ``_compute_gradients`` and makes it from the
    optimizer's settings.
    """
    hvd, keras = keras_of(front)

    class Wrapped(keras.optimizers.SGD):
        def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
            return [(hvd.allreduce(grad), variable) for grad, variable in super().compute_gradients(*args, **kwargs)]

        _compute_gradients = compute_gradients

        def get_gradients(self, loss: Any, params: Any) -> Any:
            return [hvd.allreduce(grad) for grad in super().get_gradients(loss, params)]

    theirs = line(keras, Wrapped.from_config(keras.optimizers.SGD(1.0).get_config()))
    ours = line(keras, hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    fit(theirs, hvd.rank())
    fit(ours, hvd.rank())
    return weight(theirs), weight(ours)


def passes(front: str) -> None:
    """Gradients of two passes are summed up or averaged before they are applied, in ``fit``, which compiles."""
    hvd, keras = keras_of(front)
    for average, factor in ((False, 2), (True, 1)):
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        model = line(keras, optimizer)
        fit(model, hvd.rank(), rows=4)
        assert weight(model) == 0
        fit(model, hvd.rank(), rows=12)
        assert weight(model) == -2 * factor * mean(hvd)
        # Keras 3 counts steps that were applied, Keras 2 under Horovod every pass.
        assert iterations(optimizer) == (2 if hasattr(optimizer, "gradient_accumulation_steps") else 4)


def local_variables(front: str) -> None:
    """Gradients of registered variables, or of layers, stay this rank's own."""
    hvd, keras = keras_of(front)
    rank, size = hvd.rank(), hvd.size()

    def two_layers() -> tuple[Any, Any, Any]:
        layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
        inputs = keras.Input((1,))
        return keras.Model(inputs, keras.layers.Add()([one(inputs) for one in layers])), *layers

    model, local, shared = two_layers()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.register_local_var(local.trainable_variables[0])
    model.compile(optimizer, lambda wanted, found: found)
    fit(model, rank)
    assert float(local.get_weights()[0].item()) == 1 - (rank + 1) / size
    assert float(shared.get_weights()[0].item()) == 1 - mean(hvd)
    model, local, shared = two_layers()
    partial = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=local, scale_local_gradients=False
    )
    model.compile(partial, lambda wanted, found: found)
    fit(model, rank)
    assert float(local.get_weights()[0].item()) == 1 - (rank + 1)
    assert float(shared.get_weights()[0].item()) == 1 - mean(hvd)


def finite(front: str, outer: bool) -> None:
    """A rank whose gradients overflow makes all ranks skip the step; they do not wait for it."""
    hvd, keras = keras_of(front)
    rank = hvd.rank()
    if outer:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0)))
    else:  # as Keras wraps the optimizer of a model in mixed precision
        optimizer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    model = line(keras, optimizer, 1.0)
    values = np.full((4, 1), np.inf if rank == 0 else 1.0)
    model.fit(values, np.zeros((4, 1)), verbose=0)
    assert weight(model) == 1.0
    fit(model, rank)
    assert weight(model) == 1.0 - mean(hvd)


def values(front: str) -> None:
    """Collectives on numbers, lists and arrays."""
    hvd, _ = keras_of(front)
    rank, size = hvd.rank(), hvd.size()
    assert np.array(hvd.allreduce(rank + 1.0)) == mean(hvd)
    assert np.array(hvd.allreduce(np.full(2, rank + 1), op=hvd.Sum)).tolist() == [mean(hvd) * size] * 2
    assert np.array(hvd.allgather([[rank]])).tolist() == [[one] for one in range(size)]
    assert np.array(hvd.broadcast([rank, 7], size - 1)).tolist() == [size - 1, 7]
    assert np.array(hvd.reducescatter(np.full((size, 2), rank + 1.0))).tolist() == [[mean(hvd)] * 2]


def callbacks(front: str) -> None:
    """Broadcast after the first batch, averages of metrics, learning rates of warm-up and schedule."""
    hvd, keras = keras_of(front)
    rank, size = hvd.rank(), hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=0.5))
    model = line(keras, optimizer, start=5.0 * rank)
    model.compile(optimizer, lambda wanted, found: found, metrics=["mae"])
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    history = fit(model, rank, callbacks=[broadcast, hvd.callbacks.MetricAverageCallback()])
    assert weight(model) == -mean(hvd) and broadcast.broadcast_done
    seen = np.array(hvd.allgather([history.history["mae"]]))
    assert (seen == seen[0]).all() and np.isclose(seen[0, 0], np.mean([5.0 * one * (one + 1) for one in range(size)]))
    rates: list[float] = []

    class Watch(keras.callbacks.Callback):
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(np.array(self.model.optimizer.learning_rate)))

    warmup = hvd.callbacks.LearningRateWarmupCallback(8.0, warmup_epochs=2, verbose=1)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        history = fit(model, rank, rows=8, epochs=3, callbacks=[warmup, Watch()])
    steps = [8 / size * (one * (size - 1) / 2 + 1) for one in (0.5, 1.0, 1.5, 2.0)]
    np.testing.assert_allclose(rates, [*steps, 8.0, 8.0], rtol=1e-5)
    np.testing.assert_allclose(history.history["lr"], [steps[1], 8.0, 8.0], rtol=1e-5)
    assert ("Epoch 2: finished gradual learning rate warmup to 8." in said.getvalue()) == (rank == 0)
    rates.clear()
    schedule = [
        hvd.callbacks.LearningRateScheduleCallback(1.0, 0.5, start_epoch=1, end_epoch=3),
        hvd.callbacks.LearningRateScheduleCallback(1.0, lambda epoch: epoch, start_epoch=3),
    ]
    fit(model, rank, rows=8, epochs=4, callbacks=[*schedule, Watch()])
    np.testing.assert_allclose(rates, [8.0, 8.0, 1.0, 1.0, 0.5, 0.5, 3.0, 3.0], rtol=1e-5)
    for wrong in (lambda: hvd.callbacks.LearningRateScheduleCallback(None, 1.0),):
        try:
            wrong()
        except ValueError as error:
            assert "initial_lr" in str(error)
        else:
            raise AssertionError("no error")


def saved(front: str, folder: str) -> None:
    """A model is saved without a trace of ringtune, and loaded with its optimizer wrapped and its state kept."""
    hvd, keras = keras_of(front)
    rank, path = hvd.rank(), Path(folder) / f"model-{hvd.rank()}.keras"
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=0.5))
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(optimizer, "mae")
    target = np.full((4, 1), -1e3)
    model.fit(np.full((4, 1), rank + 1.0), target, verbose=0)
    model.save(path)
    plain = keras.models.load_model(path)
    assert not hasattr(plain.optimizer, "register_local_var") and iterations(plain.optimizer) == 1
    loaded = hvd.load_model(path)
    assert hasattr(loaded.optimizer, "register_local_var")
    loaded.fit(np.full((4, 1), rank + 1.0), target, verbose=0)
    assert weight(loaded) == -2.5 * mean(hvd)
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    best.filepath = str(Path(folder) / f"best-{rank}.keras")
    loaded.fit(np.full((4, 1), rank + 1.0), target, verbose=0, callbacks=[best])
    assert Path(best.filepath).exists()


def refused(front: str) -> dict[str, str]:
    """Return what misuses raise."""
    hvd, keras = keras_of(front)
    once = hvd.DistributedOptimizer(keras.optimizers.SGD())
    tries = {
        "twice": lambda: hvd.DistributedOptimizer(once),
        "no optimizer": lambda: hvd.DistributedOptimizer("sgd"),
        "op": lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=2),
        "passes": lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0),
        "layers": lambda: hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=["none"]),
        "predivide": lambda: hvd.DistributedOptimizer(
            keras.optimizers.SGD(), gradient_predivide_factor=2.0, op=hvd.Sum
        ),
        "no path": lambda: fit(line(keras, "sgd"), 0, callbacks=[hvd.callbacks.BestModelCheckpoint()]),
    }
    said = {}
    for name, attempt in tries.items():
        try:
            attempt()
        except ValueError as error:
            said[name] = str(error)
        else:
            said[name] = ""
    return said


def distribution(front: str) -> str:
    """Return what is said to a wrapping while Keras reduces over processes itself; within one process it may."""
    hvd, keras = keras_of(front)
    found = keras.distribution.DataParallel(devices=["cpu:0"])
    keras.distribution.set_distribution(found)
    try:
        hvd.DistributedOptimizer(keras.optimizers.SGD())
        found._num_process = 2
        hvd.DistributedOptimizer(keras.optimizers.SGD())
    except NotImplementedError as error:
        return str(error)
    finally:
        keras.distribution.set_distribution(None)
    return ""


def elastic(front: str) -> None:
    """State and callbacks: batches and epochs that are done, over a failure too."""
    hvd, keras = keras_of(front)
    rank = hvd.rank()
    model = line(keras, hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=0.5)), start=3.0 * rank)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    failed: list[int] = []
    from ringtune.errors import Mismatch

    class Fail(keras.callbacks.Callback):
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            if not failed and state.epoch == 1 and batch == 1:
                failed.append(batch)
                raise Mismatch("a failure of the runtime")

    @hvd.elastic.run
    def train(state: Any) -> int:
        begun = state.epoch
        callbacks = [
            Fail(),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
        ]
        fit(state.model, rank, rows=16, initial_epoch=begun, epochs=3, callbacks=callbacks)
        return begun

    assert train(state) == 1 and failed == [1]
    assert state.epoch == 3 and state.batch == 0 and iterations(model.optimizer) == 12
    # All ranks began with the first one's weight.
    alone = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    alone.compile(keras.optimizers.SGD(1.0, momentum=0.5), lambda wanted, found: found)
    fit(alone, mean(hvd) - 1, rows=48)
    assert weight(model) == weight(alone)


def digits(front: str) -> list[float]:
    """Train a small classifier with ``fit`` and Horovod's callbacks; return the loss of each epoch over all ranks."""
    hvd, keras = keras_of(front)
    rank, size = hvd.rank(), hvd.size()
    random = np.random.default_rng(7)
    labels = np.arange(96) % 3
    points = random.normal(size=(96, 8)).astype(np.float32) + 2 * np.eye(3, 8, dtype=np.float32)[labels]
    keras.utils.set_random_seed(rank)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3, activation="softmax")]
    )
    weights = [np.random.default_rng(one.size).normal(scale=0.3, size=one.shape) for one in model.get_weights()]
    model.set_weights(weights if rank == 0 else [0.5 * one for one in weights])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "sparse_categorical_crossentropy")
    state = hvd.elastic.KerasState(model)
    state.sync()
    batches = np.arange(96).reshape(4, 24)
    mine = batches[:, rank * 24 // size : (rank + 1) * 24 // size].ravel()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = model.fit(
        points[mine], labels[mine], batch_size=24 // size, epochs=6, shuffle=False, verbose=0, callbacks=callbacks
    )
    same = np.array(hvd.allgather(model.get_weights()[0].reshape(1, -1)))
    assert (same == same[:1]).all()
    return [float(one) for one in history.history["loss"]]
