"""Steps of a training in each framework: a hand-written one of a small network, with and without ringtune.

The same network, data and rule everywhere, so that frameworks differ by nothing else. Modules of frameworks are
imported where they are used: an environment has one of them.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ringtune.benchmarks.harness.race.patterns import Array

WIDTHS = (256, 1024, 1024, 10)
"""Of the layers: 1.3 million weights, 5.1 MiB."""
BATCH = 64
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Start:
    """What a training begins with.

    Args:
        weights: a matrix for each layer, the same on all ranks.
        rows: a batch of this rank's own.
        targets: what shall come of them.
    """

    weights: list[Array]
    rows: Array
    targets: Array


def start_of(rank: int) -> Start:
    """Returns the weights and the batch of a rank."""
    common, own = np.random.default_rng(0), np.random.default_rng(rank + 1)

    def normal(random: np.random.Generator, *shape: int) -> Array:
        return random.normal(size=shape).astype(np.float32)

    weights = [normal(common, *pair) / np.float32(math.sqrt(pair[0])) for pair in pairwise(WIDTHS)]
    return Start(weights, normal(own, BATCH, WIDTHS[0]), normal(own, BATCH, WIDTHS[-1]))


Step = Callable[[], Any]
"""Trains a step and returns its loss when everything is done."""


def _tensorflow(start: Start, reduces: bool) -> Step:
    import tensorflow as tf

    import ringtune.tensorflow as hvd

    weights = [tf.Variable(one) for one in start.weights]
    rows, targets = tf.constant(start.rows), tf.constant(start.targets)

    def step() -> Any:
        with tf.GradientTape() as tape:
            found = rows
            for weight in weights[:-1]:
                found = tf.nn.relu(found @ weight)
            loss = tf.reduce_mean((found @ weights[-1] - targets) ** 2)
        reducing = hvd.DistributedGradientTape(tape) if reduces else tape
        for weight, gradient in zip(weights, reducing.gradient(loss, weights), strict=True):
            weight.assign_sub(LEARNING_RATE * gradient)
        return loss

    traced = tf.function(step, autograph=False)
    return lambda: traced().numpy()


def _jax(start: Start, reduces: bool) -> Step:
    import jax
    import jax.numpy as jnp

    import ringtune.jax as hvd

    rows, targets = jnp.asarray(start.rows), jnp.asarray(start.targets)

    def loss_of(weights: Any) -> Any:
        found = rows
        for weight in weights[:-1]:
            found = jax.nn.relu(found @ weight)
        return ((found @ weights[-1] - targets) ** 2).mean()

    def step(weights: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        if reduces:
            gradients = hvd.allreduce(gradients, name="gradients")
        return [weight - LEARNING_RATE * one for weight, one in zip(weights, gradients, strict=True)], loss

    compiled = jax.jit(step, donate_argnums=0)
    weights = [jnp.array(one, copy=True) for one in start.weights]

    def run() -> Any:
        nonlocal weights
        weights, loss = jax.block_until_ready(compiled(weights))
        return loss

    return run


def _keras(start: Start, reduces: bool) -> Step:
    import keras

    import ringtune.keras as hvd

    layers = [keras.layers.Dense(width, "relu", use_bias=False) for width in WIDTHS[1:-1]]
    model = keras.Sequential([keras.Input((WIDTHS[0],)), *layers, keras.layers.Dense(WIDTHS[-1], use_bias=False)])
    model.set_weights(start.weights)
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer) if reduces else optimizer, loss="mse")
    return lambda: model.train_on_batch(start.rows, start.targets)


def _mxnet(start: Start, reduces: bool) -> Step:
    import mxnet as mx

    import ringtune.mxnet as hvd

    net = mx.gluon.nn.Sequential()
    for width in WIDTHS[1:-1]:
        net.add(mx.gluon.nn.Dense(width, "relu", use_bias=False))
    net.add(mx.gluon.nn.Dense(WIDTHS[-1], use_bias=False))
    net.initialize()
    rows, targets = mx.nd.array(start.rows), mx.nd.array(start.targets)
    net(rows)
    for parameter, weight in zip(net.collect_params().values(), start.weights, strict=True):
        parameter.set_data(mx.nd.array(weight.T))
    # A gluon trainer divides by the rows of the batch, and the loss is the sum of their means' halves.
    rule = {"learning_rate": 2 * LEARNING_RATE}
    trainer = (hvd.DistributedTrainer if reduces else mx.gluon.Trainer)(net.collect_params(), "sgd", rule)
    loss_of = mx.gluon.loss.L2Loss()

    def step() -> Any:
        with mx.autograd.record():
            loss = loss_of(net(rows), targets)
        loss.backward()
        trainer.step(BATCH)
        mx.nd.waitall()
        return 2 * loss.mean().asscalar()

    return step


STEPS: dict[str, Callable[[Start, bool], Step]] = {
    "tensorflow": _tensorflow,
    "jax": _jax,
    "keras": _keras,
    "mxnet": _mxnet,
}
"""By framework: makes the step of a rank, which averages gradients over the ranks or does not."""


class StepContest:
    """Trains step after step; the model goes on learning."""

    max_calls = 1 << 20
    settle: Callable[[], None] | None = None

    def __init__(self, step: Step) -> None:
        gc.enable()  # as in any training script: garbage is part of a step's cost
        self._step = step
        self._loss: Any = math.nan
        self.call: Callable[[], None] = self._call

    def fill(self) -> None:
        """Leaves everything as it is."""

    def _call(self) -> None:
        self._loss = self._step()

    def check(self, calls: int) -> None:
        """Raises ArithmeticError when the loss is no number any more."""
        if not math.isfinite(float(self._loss)):
            raise ArithmeticError(f"the loss became {self._loss} within {calls} steps")


def prepare(framework: str, threads: int) -> str:
    """Sets a framework up, and returns its name and version."""
    if framework == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        return f"TensorFlow {tf.__version__}"
    if framework == "keras":
        os.environ["KERAS_BACKEND"] = "torch"
        import keras
        import torch

        torch.set_num_threads(threads)
        return f"Keras {keras.__version__}, torch {torch.__version__}"
    module: Any = __import__(framework)
    return f"{framework} {module.__version__}"
