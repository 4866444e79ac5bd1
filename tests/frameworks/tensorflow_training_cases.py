"""What ranks do with tapes, optimizers and layers of TensorFlow. Values are small whole numbers, so sums are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import ringtune.tensorflow as hvd


def in_mode(function: Callable[..., Any], traced: bool) -> Callable[..., Any]:
    return tf.function(function) if traced else function


def mean() -> float:
    """Return the mean of rank + 1 over the ranks."""
    return (hvd.size() + 1) / 2


def tape(traced: bool) -> None:
    """Gradients in the structure of their sources; None stays None; every option."""
    rank, size = hvd.rank(), hvd.size()
    one, two, unused = tf.Variable([1.0, 2.0]), tf.Variable(3.0), tf.Variable(1.0)
    table = tf.Variable(tf.ones((4, 2)))

    def run(**options: Any) -> Any:
        use_generic_names = options.pop("use_generic_names", False)
        with tf.GradientTape() as recorded:
            loss = (rank + 1) * (tf.reduce_sum(one) + 2 * two) + tf.reduce_sum(tf.gather(table, [rank])) * (rank + 1)
        reducing = hvd.DistributedGradientTape(recorded, **options)
        assert isinstance(reducing, tf.GradientTape) and type(reducing).__name__ == "GradientTape"
        sources = {"pair": [one, two], "unused": unused, "table": table}
        return reducing.gradient(loss, sources, use_generic_names=use_generic_names)

    def check(factor: float, **options: Any) -> None:
        found = in_mode(lambda: run(**options), traced)()
        assert found["unused"] is None
        np.testing.assert_array_equal(found["pair"][0].numpy(), [factor, factor])
        assert found["pair"][1].numpy() == 2 * factor
        rows = np.zeros((4, 2), np.float32)
        rows[:size] = (np.arange(size)[:, None] + 1) * factor / (mean() * size)
        np.testing.assert_allclose(tf.convert_to_tensor(found["table"]).numpy(), rows, rtol=1e-6)
        assert isinstance(found["table"], tf.IndexedSlices) != bool(options.get("sparse_as_dense"))

    check(mean())
    check(mean() * size, op=hvd.Sum)
    check(mean(), use_generic_names=True)
    check(mean(), groups=2)
    check(mean(), groups=[[one, two]], sparse_as_dense=True)
    check(mean(), sparse_as_dense=True, compression=hvd.Compression.fp16)
    with tf.GradientTape() as recorded:
        loss = (rank + 1) * tf.reduce_sum(one)
    [found] = hvd.DistributedGradientTape(recorded, gradient_predivide_factor=2.0).gradient(loss, [one])
    np.testing.assert_allclose(found.numpy(), [mean(), mean()])


def same_names_in_groups() -> None:
    """Variables of one name are told apart (Keras 3 calls every kernel "kernel"); the given tape may still record."""
    rank = hvd.rank()
    kernels = [tf.Variable(float(i), name="kernel") for i in range(4)]
    with tf.GradientTape(persistent=True) as recorded:
        reducing = hvd.DistributedGradientTape(recorded, groups=[kernels[:2], kernels[2:]], op=hvd.Sum)
        loss = sum((rank + 1) * (i + 1) * one for i, one in enumerate(kernels))
    for _ in range(2):  # persistent
        found = reducing.gradient(loss, kernels)
        assert [one.numpy() for one in found] == [(i + 1) * mean() * hvd.size() for i in range(4)]


def local_sources(traced: bool) -> None:
    """Gradients of registered sources stay this rank's own, as large as their part of an average."""
    rank, size = hvd.rank(), hvd.size()
    own, shared = tf.Variable(1.0), tf.Variable(1.0)

    def run(**options: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as recorded:
            loss = (rank + 1) * (own + shared)
        reducing = hvd.DistributedGradientTape(recorded, **options)
        reducing.register_local_source(own)
        local, everyone = reducing.get_local_and_global_gradients(loss, [shared, own])
        assert local[0][0] is own and everyone[0][0] is shared
        return local[0][1], everyone[0][1]

    local, everyone = in_mode(lambda: run(), traced)()
    assert (local.numpy(), everyone.numpy()) == ((rank + 1) / size, mean())
    local, everyone = in_mode(lambda: run(scale_local_gradients=False), traced)()
    assert (local.numpy(), everyone.numpy()) == (rank + 1, mean())
    layer, other = tf.keras.layers.Dense(1, use_bias=False), tf.keras.layers.Dense(1, use_bias=False)
    layer.build((None, 1))
    other.build((None, 1))
    with tf.GradientTape() as recorded:
        loss = tf.reduce_sum(layer(tf.fill((1, 1), rank + 1.0)) + other(tf.fill((1, 1), rank + 1.0)))
    partial = hvd.PartialDistributedGradientTape(recorded, local_layers=[layer])
    grads = partial.gradient(loss, [*layer.trainable_variables, *other.trainable_variables])
    assert [one.numpy().item() for one in grads] == [(rank + 1) / size, mean()]


def two_tapes_in_one_function() -> None:
    """As generator and discriminator have: their gradients are under way at the same time."""
    rank = hvd.rank()
    one, two = tf.Variable(1.0), tf.Variable(1.0)

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as first, tf.GradientTape() as second:
            losses = (rank + 1) * one, 10 * (rank + 1) * two
        grads = hvd.DistributedGradientTape(first).gradient(losses[0], [one])
        return grads[0], hvd.DistributedGradientTape(second).gradient(losses[1], [two])[0]

    for _ in range(3):
        found = step()
        assert [value.numpy() for value in found] == [mean(), 10 * mean()]


def refused_of_tapes() -> list[str]:
    """Return what misuses of tapes and optimizers raise."""
    tape = tf.GradientTape()
    said = []
    attempts: list[Callable[[], Any]] = [
        lambda: hvd.DistributedGradientTape("no tape"),
        lambda: hvd.DistributedGradientTape(tape, op=hvd.Sum, gradient_predivide_factor=2.0),
        lambda: hvd.DistributedGradientTape(tape, groups=-1),
        lambda: hvd.DistributedGradientTape(tape, groups=[1, 2]),
        lambda: hvd.PartialDistributedGradientTape(tape, local_layers=["no layer"]),
        lambda: hvd.DistributedOptimizer("no optimizer"),
        lambda: hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2),
        lambda: hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum),
        lambda: hvd.elastic.TensorFlowState(session="a session"),
        lambda: hvd.SyncBatchNormalization(fused=True),
    ]
    for attempt in attempts:
        try:
            attempt()
        except ValueError as error:
            said.append(str(error))
        else:
            said.append("")
    return said


def v1_optimizer(op: str) -> None:
    """In eager mode by hand, and in a graph with a session; slots and variables are the given optimizer's."""
    rank = hvd.rank()
    number = {"Average": hvd.Average, "Sum": hvd.Sum}[op]
    factor = mean() * (hvd.size() if op == "Sum" else 1)
    with tf.Graph().as_default():
        own, local = (tf.compat.v1.get_variable(name, initializer=5.0) for name in ("own", "local"))
        inner = tf.compat.v1.train.MomentumOptimizer(1.0, 0.5)
        optimizer = hvd.DistributedOptimizer(inner, op=number)
        assert isinstance(optimizer, tf.compat.v1.train.Optimizer) and optimizer._optimizer is inner
        assert optimizer.get_name() == "DistributedMomentumOptimizer"
        optimizer.register_local_var(local)
        train = optimizer.apply_gradients(optimizer.compute_gradients((rank + 1.0) * (own + local)))
        start = hvd.broadcast_global_variables(0)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(start)
            session.run(train)
            assert session.run(own) == 5.0 - factor and session.run(local) == 5.0 - (rank + 1) / hvd.size()
            assert session.run(optimizer.get_slot(own, "momentum")) == factor
            assert optimizer.get_slot_names() == ["momentum"] and len(optimizer.variables()) == 2


def keras_optimizer() -> None:
    """Operation, groups and process set reach the optimizer of Keras that it is."""
    rank, size = hvd.rank(), hvd.size()
    weights = [tf.Variable(float(i), name="kernel") for i in range(4)]
    for groups in (None, 2, [weights[:2], weights[2:]]):
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=hvd.Sum, groups=groups)
        assert isinstance(optimizer, tf.keras.optimizers.SGD)
        for i, one in enumerate(weights):
            one.assign(float(i))
        optimizer.apply_gradients([(tf.constant(rank + 1.0), one) for one in weights])
        assert [one.numpy() for one in weights] == [i - mean() * size for i in range(4)]


def v1_passes(average: bool) -> None:
    """Gradients of three passes are summed up on each rank, reduced once and applied; the global step goes on."""
    rank = hvd.rank()
    with tf.Graph().as_default():
        weight = tf.compat.v1.placeholder(tf.float32, [])
        own = tf.compat.v1.get_variable("own", initializer=100.0)
        count = tf.compat.v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=3,
            average_aggregated_gradients=average,
        )
        pairs = optimizer.compute_gradients(weight * (rank + 1.0) * own)
        train = optimizer.apply_gradients(pairs, global_step=count)
        with tf.compat.v1.Session() as session:
            session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()])
            seen = []
            for value in (1.0, 2.0, 3.0, 6.0, 6.0, 6.0):
                session.run(train, {weight: value})
                seen.append(float(session.run(own)))
            divisor = 3 if average else 1
            first, second = 100 - 6 * mean() / divisor, 100 - 24 * mean() / divisor
            assert seen == [100, 100, first, first, first, second], seen
            assert session.run(count) == 6


def synchronized_batch_norm(traced: bool) -> None:
    """Outputs, moving averages and gradients are those of one process with the batches of all ranks."""
    rank, size = hvd.rank(), hvd.size()
    rows = [np.float32(np.random.default_rng(one).normal(size=(3 + one, 2, 4))) for one in range(size)]
    together = tf.keras.layers.BatchNormalization(momentum=0.5)
    apart = hvd.SyncBatchNormalization(momentum=0.5)
    assert apart.name.startswith("sync_batch_normalization")
    for layer in (together, apart):
        layer.build((None, 2, 4))

    def run(layer: Any, x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as recorded:
            recorded.watch(x)
            found = layer(x, training=True)
            loss = tf.reduce_sum(found * found * found)
        variables = [one.value if not callable(one.value) else one for one in layer.trainable_variables]
        return found, recorded.gradient(loss, [x, *variables])

    whole, whole_grads = run(together, tf.constant(np.concatenate(rows)))
    found, grads = in_mode(lambda x: run(apart, x), traced)(tf.constant(rows[rank]))
    begin = sum(len(one) for one in rows[:rank])
    mine = slice(begin, begin + len(rows[rank]))
    np.testing.assert_allclose(found, whole[mine], atol=1e-4)
    np.testing.assert_allclose(grads[0], whole_grads[0][mine], atol=1e-3)
    for one, other in zip(grads[1:], whole_grads[1:], strict=True):
        np.testing.assert_allclose(hvd.allreduce(one, op=hvd.Sum), other, rtol=1e-3, atol=1e-3)
    for one, other in zip(apart.non_trainable_variables, together.non_trainable_variables, strict=True):
        np.testing.assert_allclose(np.array(one), np.array(other), atol=1e-4)
    np.testing.assert_allclose(apart(rows[0], training=False), together(rows[0], training=False), atol=1e-4)
    again = type(apart).from_config(apart.get_config())
    assert again.momentum == 0.5


def data(count: int = 96) -> tuple[np.ndarray, np.ndarray]:
    """Return points of three classes, one behind the other."""
    random = np.random.default_rng(7)
    labels = np.arange(count) % 3
    points = random.normal(size=(count, 8)).astype(np.float32) + 2 * np.eye(3, 8, dtype=np.float32)[labels]
    return points, labels


def loop(steps: int = 12, batch: int = 24, traced: bool = True) -> list[float]:
    """Train by hand as Horovod's examples do, and return the loss of each step over the whole batch."""
    rank, size = hvd.rank(), hvd.size()
    tf.random.set_seed(rank)  # ranks begin differently: the broadcast after the first step brings them together
    points, labels = data()
    first = tf.Variable(tf.random.normal((8, 16), stddev=0.3)) if rank else tf.Variable(initial(8, 16))
    second = tf.Variable(tf.random.normal((16, 3), stddev=0.3)) if rank else tf.Variable(initial(16, 3))
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    hvd.broadcast_variables([first, second], root_rank=0)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as recorded:
            logits = tf.nn.relu(x @ first) @ second
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        reducing = hvd.DistributedGradientTape(recorded)
        grads = reducing.gradient(loss, [first, second])
        optimizer.apply_gradients(zip(grads, [first, second], strict=True))
        return hvd.allreduce(loss, name="loss")

    if traced:
        optimizer.build([first, second])
    run = in_mode(step, traced)
    losses = []
    for number in range(steps):
        begin = number * batch % len(points)
        mine = slice(begin + rank * batch // size, begin + (rank + 1) * batch // size)
        losses.append(float(run(tf.constant(points[mine]), tf.constant(labels[mine]))))
    same = hvd.allgather(tf.reshape(second, [1, -1])).numpy()
    assert (same == same[:1]).all()
    return losses


def horovod_example() -> list[float]:
    """Train as ``tensorflow2_mnist.py`` of Horovod does: the broadcast stands in the function, after the first step."""
    rank, size = hvd.rank(), hvd.size()
    tf.random.set_seed(rank)
    points, labels = data()
    mine = slice(rank * len(points) // size, (rank + 1) * len(points) // size)
    dataset = tf.data.Dataset.from_tensor_slices((points[mine], tf.cast(labels[mine], tf.int64)))
    dataset = dataset.repeat().shuffle(100, seed=1).batch(16)
    layers = [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(3, activation="softmax")]
    model = tf.keras.Sequential(layers)
    losses, optimizer = tf.losses.SparseCategoricalCrossentropy(), tf.optimizers.Adam(0.01 * size)

    @tf.function
    def training_step(images: tf.Tensor, wanted: tf.Tensor, first_batch: bool) -> tf.Tensor:
        with tf.GradientTape() as recorded:
            found = model(images, training=True)
            loss = losses(wanted, found)
        reducing = hvd.DistributedGradientTape(recorded)
        grads = reducing.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))  # noqa: B905 - as Horovod writes it
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            variables = optimizer.variables
            hvd.broadcast_variables(variables() if callable(variables) else variables, root_rank=0)
        return loss

    seen = []
    for batch, (images, wanted) in enumerate(dataset.take(60 // size)):
        seen.append(float(training_step(images, wanted, batch == 0)))
        weights = np.concatenate([np.ravel(one) for one in model.get_weights()])
        same = hvd.allgather(weights[None]).numpy()
        assert (same == same[:1]).all()
    return seen


def fit_batches(count: int) -> None:
    """Train so many batches by ``fit``."""
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(3)])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), "mse")
    model.fit(np.ones((count * 4, 8)), np.ones((count * 4, 3)), batch_size=4, verbose=0)


def initial(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(scale=0.3, size=(rows, columns)).astype(np.float32)
