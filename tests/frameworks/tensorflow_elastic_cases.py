"""What ranks do when others are lost, and states of elastic training."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import ringtune.tensorflow as hvd
from ringtune.common.framework_errors import failure_of
from ringtune.errors import InvalidArgument


def reduce_until_it_fails(traced: bool) -> tuple[str, str, str]:
    """Return class and text of TensorFlow's error, and the class of ringtune's."""

    def reduce(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, op=hvd.Sum, name="again")

    run = tf.function(reduce) if traced else reduce
    told = False
    while True:
        try:
            run(tf.ones(10))
        except tf.errors.OpError as error:
            return type(error).__name__, error.message, type(failure_of(error)).__name__
        if not told:
            print("reducing", file=sys.stderr, flush=True)
            told = True


class _State(hvd.elastic.TensorFlowState):
    """Counts what happens to it."""

    def __init__(self) -> None:
        self.restored = 0
        super().__init__([tf.Variable(1.0)])

    def restore(self) -> None:
        self.restored += 1
        super().restore()


def elastic_errors() -> dict[str, str]:
    """Return what becomes of errors that a training function raises."""
    unknown = "{{node StatefulPartitionedCall/RingtuneAlltoall}} ringtune.errors.RuntimeFailure: a link broke"
    raised: dict[str, Exception] = {
        "UnknownError of an alltoall": tf.errors.UnknownError(None, None, unknown),
        "FailedPreconditionError": tf.errors.FailedPreconditionError(None, None, "ringtune.errors.Mismatch: no"),
        "AbortedError": tf.errors.AbortedError(None, None, "ringtune.errors.ShutDown: was shut down"),
        "UnknownError of another": tf.errors.UnknownError(None, None, "the disk is full"),
        "ValueError": ValueError("of the script"),
    }
    became = {}
    for name, error in raised.items():
        state = _State()
        calls = []

        @hvd.elastic.run
        def train(state: Any, calls: list[int] = calls, error: Exception = error) -> str:
            calls.append(1)
            state.commit()
            if len(calls) == 1:
                raise error
            return "a new try"

        try:
            became[name] = train(state)
            assert state.restored == 1 and len(calls) == 2
        except Exception as found:
            became[name] = type(found).__name__
    return became


def states() -> None:
    """Variables and attributes; the optimizer's variables too, which Keras gives as a list or a function."""
    rank = hvd.rank()
    variables = [tf.Variable(float(rank)), tf.Variable([rank, rank])]
    plain = hvd.elastic.TensorFlowState(variables, batch=rank)
    assert variables[0].numpy() == rank  # nothing is broadcast before sync()
    plain.sync()
    assert variables[0].numpy() == 0 and variables[1].numpy().tolist() == [0, 0] and plain.batch == 0
    variables[0].assign(9.0)
    plain.batch = 7
    plain.restore()
    assert variables[0].numpy() == 0 and plain.batch == 0
    variables[0].assign(5.0)
    plain.save()
    variables[0].assign(6.0)
    plain.restore()
    assert variables[0].numpy() == 5
    try:
        hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(1)]))
    except ValueError as error:
        assert "Model must be built first" in str(error)
    else:
        raise AssertionError("a model that is not built was taken")
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.set_weights([np.full((2, 1), float(rank)), np.full(1, float(rank))])
    state = hvd.elastic.TensorFlowKerasState(model, epoch=rank)
    state.sync()
    assert model.get_weights()[0].tolist() == [[0.0], [0.0]] and state.epoch == 0
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert int(model.optimizer.iterations) == 1
    trained = model.get_weights()
    state.commit()
    model.fit(np.ones((4, 2)), np.ones((4, 1)), epochs=2, verbose=0)
    state.restore()
    assert int(model.optimizer.iterations) == 1
    assert all(np.array_equal(one, other) for one, other in zip(trained, model.get_weights(), strict=True))
    # What a later process finds on the disk.
    kept = pickle.loads(pickle.dumps(state.saved()))
    later = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    later.compile("adam", "mse")
    hvd.elastic.TensorFlowKerasState(later, epoch=5).take_saved(kept)
    assert int(later.optimizer.iterations) == 1
    assert all(np.array_equal(one, other) for one, other in zip(trained, later.get_weights(), strict=True))
    wider = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    wider.compile("adam", "mse")
    try:
        hvd.elastic.TensorFlowKerasState(wider, epoch=5).take_saved(kept)
    except InvalidArgument as error:
        assert "has variables of the shapes" in str(error)
    else:
        raise AssertionError("another model was taken")


def make_a_state() -> bool:
    """Make one, without a word to other ranks."""
    made: list[Callable[..., Any]] = [hvd.elastic.TensorFlowState]
    return all(one([tf.Variable(1.0)], batch=1).batch == 1 for one in made)
