"""What ranks do in traced functions: the order of ops, and their names."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import ringtune.tensorflow as hvd
from tests.frameworks.tensorflow_cases import ERRORS, same


def hundreds_in_any_order() -> None:
    """Hundreds of ops that wait for nothing but the other ranks, which make them in another order."""
    order = np.random.default_rng(hvd.rank()).permutation(300)

    @tf.function
    def run(x: tf.Tensor) -> list[tf.Tensor]:
        found: dict[int, tf.Tensor] = {}
        for i in order:
            found[int(i)] = hvd.allreduce(x + float(i), op=hvd.Sum, name=f"one.{i}")
        return [found[i] for i in range(len(order))]

    for _ in range(3):
        for i, one in enumerate(run(tf.zeros(4))):
            same(one, np.full(4, i * hvd.size(), np.float32))


def names_agree_after_retracing() -> None:
    """One rank traces the functions more often, in other shapes, with branches and loops, and others before them."""
    rank = hvd.rank()
    for _ in range(3 * rank):  # what only some ranks trace
        tf.function(lambda x: tf.while_loop(lambda i: i < 3, lambda i: i + 1, [x]))(tf.constant(0))
    inner_calls = []

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        inner_calls.append(1)
        return hvd.allreduce(x, op=hvd.Sum)

    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first = hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)
        second = inner(tf.constant([1.0, 2.0]))
        total = tf.constant(0.0)
        for _ in tf.range(4):
            total += hvd.allreduce(tf.constant(1.0), op=hvd.Sum)
        if tf.equal(tf.shape(x)[0], -1):
            total += hvd.allreduce(total, op=hvd.Max)
        return first, second, total, hvd.allgather(tf.reshape(first, [1]))

    if rank % 2:
        for rows in (3, 4, 5):  # traced without being run
            step.get_concrete_function(tf.zeros(rows))
        inner.get_concrete_function(tf.zeros(3))
    for rows in (2 + rank, 2 + rank, 6 + 2 * rank):  # a last batch of another size on some ranks
        first, second, total, third = step(tf.ones(rows))
        base, more = (2, 1) if rows == 2 + rank else (6, 2)
        assert first.numpy() == sum(base + more * one for one in range(hvd.size()))
        same(second, np.array([1.0, 2.0], np.float32) * hvd.size())
        assert total.numpy() == 4 * hvd.size()
        assert third.shape == (hvd.size(),)


def function_called_twice() -> None:
    """The calls of one traced function run one after the other, so its names are in flight once."""

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(10 * x, op=hvd.Sum)

    @tf.function
    def outer(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return inner(x), inner(2 * x), inner(3 * x)

    for _ in range(5):
        found = outer(tf.ones(3))
        for factor, one in enumerate(found, 1):
            same(one, np.full(3, 11 * factor * hvd.size(), np.float32))


def duplicate_name() -> tuple[str, str]:
    """Two ops of one name at once, which only the first may have."""

    @tf.function
    def run() -> tuple[tf.Tensor, tf.Tensor]:
        return hvd.allreduce(tf.ones(2), name="twice"), hvd.allreduce(tf.zeros(2), name="twice")

    try:
        run()
    except ERRORS.InvalidArgumentError as error:
        return type(error).__name__, error.message
    return "", ""
