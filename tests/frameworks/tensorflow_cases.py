"""What ranks do with tensors of TensorFlow. Values are small whole numbers, so that every sum is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import ringtune.tensorflow as hvd

OPS = {"Sum": hvd.Sum, "Average": hvd.Average, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}
ERRORS = tf.errors


def part(rank: int, shape: tuple[int, ...], dtype: str, op: str = "Sum") -> tf.Tensor:
    """Return what a rank contributes; averages come out even for every number of ranks."""
    values = np.arange(int(np.prod(shape))).reshape(shape)
    values = (values + rank) % 2 + 1 if op == "Product" else values % 7 + 2 * rank
    return tf.cast(tf.constant(values), dtype)


def expected(shape: tuple[int, ...], dtype: str, op: str) -> Any:
    parts = np.stack([part(rank, shape, "int64", op).numpy() for rank in range(hvd.size())])
    folds: dict[str, Callable[..., Any]] = {
        "Sum": parts.sum, "Min": parts.min, "Max": parts.max, "Product": parts.prod, "Average": parts.mean,
    }  # fmt: skip
    return tf.cast(tf.constant(folds[op](axis=0)), dtype).numpy()


def same(found: tf.Tensor, wanted: Any) -> None:
    assert found.shape == wanted.shape and np.array_equal(found.numpy(), wanted), (found, wanted)


def in_mode(function: Callable[..., Any], traced: bool) -> Callable[..., Any]:
    return tf.function(function) if traced else function


def allreduced(dtype: str, op: str, traced: bool) -> None:
    """A tensor, a scalar, none at all, and a variable; the inputs stay."""
    for shape in ((7, 13), (), (0, 4), (1, 1, 3)):
        own = part(hvd.rank(), shape, dtype, op)
        before = own.numpy().copy()
        found = in_mode(lambda x: hvd.allreduce(x, op=OPS[op]), traced)(own)
        assert found.dtype == own.dtype
        same(found, expected(shape, dtype, op))
        assert np.array_equal(own.numpy(), before)
    variable = tf.Variable(part(hvd.rank(), (3,), dtype, op))
    found = in_mode(lambda: hvd.allreduce(variable, op=OPS[op]), traced)()
    same(found, expected((3,), dtype, op))
    same(variable.read_value(), part(hvd.rank(), (3,), dtype, op).numpy())


def moved(dtype: str, traced: bool) -> None:
    """Gather ranks' different rows, broadcast from the last, exchange with and without splits."""
    size, rank = hvd.size(), hvd.rank()

    def rows(of: int, count: int) -> tf.Tensor:
        return tf.cast(tf.reshape(tf.range(count * 2), (count, 2)) % 5 + of, dtype)

    gathered = in_mode(lambda x: hvd.allgather(x), traced)(rows(rank, rank + 1))
    same(gathered, np.concatenate([rows(one, one + 1).numpy() for one in range(size)]))
    same(in_mode(lambda x: hvd.broadcast(x, size - 1), traced)(rows(rank, 3)), rows(size - 1, 3).numpy())
    splits = [rank + to for to in range(size)]
    for given in (splits, tf.constant(splits), np.array(splits, dtype=np.int64)):
        found, received = in_mode(lambda x, given=given: hvd.alltoall(x, given), traced)(rows(rank, sum(splits)))
        begins = [sum(one + to for to in range(rank)) for one in range(size)]
        sent = [rows(one, sum(one + to for to in range(size))).numpy() for one in range(size)]
        same(found, np.concatenate([sent[one][begins[one] : begins[one] + one + rank] for one in range(size)]))
        assert received.numpy().tolist() == [one + rank for one in range(size)] and received.dtype == tf.int32
    equal = in_mode(lambda x: hvd.alltoall(x), traced)(rows(rank, size))
    same(equal, np.stack([rows(one, size).numpy()[rank] for one in range(size)]))


def scattered(dtype: str, traced: bool) -> None:
    """The first ranks get one more row; an average too, and several tensors in one call."""
    size, rank = hvd.size(), hvd.rank()
    shape = (2 * size + 1, 3)
    own = part(rank, shape, dtype)
    share, more = divmod(shape[0], size)
    begin = rank * share + min(rank, more)
    mine = slice(begin, begin + share + (1 if rank < more else 0))
    for op in ("Sum", "Average"):
        found = in_mode(lambda x, op=op: hvd.reducescatter(x, op=OPS[op]), traced)(own)
        same(found, expected(shape, dtype, op)[mine])
    pair = in_mode(lambda x: hvd.grouped_reducescatter([x, 2 * x], op=hvd.Sum), traced)(own)
    same(pair[0], expected(shape, dtype, "Sum")[mine])
    same(pair[1], 2 * expected(shape, dtype, "Sum")[mine])


def grouped(traced: bool) -> None:
    """Tensors of several dtypes in one group; a gather of several; nothing at all."""
    rank = hvd.rank()
    shapes = {"float32": (4,), "int64": (2, 3), "float64": (), "half": (0,)}
    own = [part(rank, shape, dtype) for dtype, shape in shapes.items()]
    found = in_mode(lambda *x: hvd.grouped_allreduce(list(x), op=hvd.Sum), traced)(*own)
    for one, given in zip(found, own, strict=True):
        same(one, expected(tuple(given.shape), given.dtype.name, "Sum"))
    joined = in_mode(lambda *x: hvd.grouped_allgather(list(x)), traced)(own[0][None], own[1])
    assert [tuple(one.shape) for one in joined] == [(hvd.size(), 4), (2 * hvd.size(), 3)]
    assert hvd.grouped_allreduce([]) == [] and hvd.grouped_allgather([]) == [] and hvd.grouped_reducescatter([]) == []


def slices(rank: int, width: int = 2) -> tf.IndexedSlices:
    """Return rank + 1 rows of a table."""
    values = tf.cast(tf.fill((rank + 1, width), 4 * (rank + 1)), tf.float32)
    return tf.IndexedSlices(values, tf.range(rank + 1, dtype=tf.int64), tf.constant([5, width], tf.int64))


def sparse(traced: bool) -> None:
    """Rows of all ranks come together, averaged or summed; in groups with dense tensors each keeps its own shape."""
    size, rank = hvd.size(), hvd.rank()
    whole = sum(tf.convert_to_tensor(slices(one)).numpy() for one in range(size))
    for op, wanted in ((hvd.Sum, whole), (hvd.Average, whole / size)):
        found = in_mode(lambda op=op: hvd.allreduce(slices(rank), op=op), traced)()
        assert isinstance(found, tf.IndexedSlices)
        same(tf.convert_to_tensor(found), wanted)
    mixed = in_mode(
        lambda: hvd.grouped_allreduce([tf.ones(3), slices(rank, 3), tf.ones(7), slices(rank)], op=hvd.Sum), traced
    )()
    assert [one.dense_shape.numpy().tolist() for one in (mixed[1], mixed[3])] == [[5, 3], [5, 2]]
    same(tf.convert_to_tensor(mixed[3]), whole)
    same(mixed[2], np.full(7, size, np.float32))
    for given in ({"op": hvd.Min}, {"op": hvd.Sum, "prescale_factor": 2.0}):
        try:
            hvd.allreduce(slices(rank), **given)
        except NotImplementedError as error:
            assert "sparse_as_dense" in str(error)
        else:
            raise AssertionError(given)


def factors(traced: bool) -> None:
    """Factors are double numbers: 0.1 is no float32."""
    ones = tf.ones(3, tf.float64)
    found = in_mode(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.1, postscale_factor=3.0), traced)(ones)
    same(found, np.full(3, 0.1 * hvd.size() * 3.0))


def adasum_of_a_group(traced: bool) -> None:
    """Equal gradients are averaged, orthogonal ones summed."""
    rank = hvd.rank()
    equal, orthogonal = tf.constant([3.0, 4.0]), tf.one_hot(rank, 2) * 2
    found = in_mode(lambda x, y: hvd.grouped_allreduce([x, y], op=hvd.Adasum), traced)(equal, orthogonal)
    np.testing.assert_allclose(found[0].numpy(), [3.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(found[1].numpy(), [2.0, 2.0], rtol=1e-6)


def gradients(traced: bool) -> None:
    """The derivative of each collective, as Horovod has it."""
    size, rank = hvd.size(), hvd.rank()

    def gradient(function: Callable[[tf.Tensor], tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
        own = part(rank, shape, "float32")

        def run(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                found = function(x)
                weight = tf.cast(tf.range(tf.size(found)), tf.float32) + rank
                loss = tf.reduce_sum(found * tf.reshape(weight, tf.shape(found)))
            return tape.gradient(loss, x)

        return in_mode(run, traced)(own)

    ranks = np.arange(size)
    index = np.arange(6).reshape(3, 2)
    weights = [index + one for one in ranks]
    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), (3, 2)), np.float32(sum(weights)))
    same(gradient(lambda x: hvd.allreduce(x), (3, 2)), np.float32(sum(weights) / size))
    same(gradient(lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)[1], (3, 2)), np.float32(2 * sum(weights)))
    whole = np.arange(6 * size).reshape(3 * size, 2)
    mine = slice(3 * rank, 3 * rank + 3)
    same(gradient(lambda x: hvd.allgather(x), (3, 2)), np.float32((whole + ranks.mean())[mine]))
    wanted = np.float32(index + ranks.mean()) if rank == 0 else np.zeros((3, 2), np.float32)
    same(gradient(lambda x: hvd.broadcast(x, 0), (3, 2)), wanted)
    back = np.arange(size * 2).reshape(size, 2)
    same(
        gradient(lambda x: hvd.alltoall(x), (size, 2)),
        np.float32(np.stack([back[rank] + one for one in ranks])),
    )
    same(
        gradient(lambda x: hvd.alltoall(x, [1] * size)[0], (size, 2)),
        np.float32(np.stack([back[rank] + one for one in ranks])),
    )
    rows = np.concatenate([np.arange(4).reshape(2, 2) + one for one in ranks])
    same(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), (2 * size, 2)), np.float32(size * rows))
    same(gradient(lambda x: hvd.reducescatter(x), (2 * size, 2)), np.float32(rows))


def refused() -> dict[str, tuple[str, str]]:
    """Return class and text of what each misuse raises."""
    rank = hvd.rank()
    both = hvd.Average
    tries: dict[str, Callable[[], Any]] = {
        "shape": lambda: hvd.allreduce(tf.zeros(2 + rank), name="t.shape"),
        "shape in a function": lambda: tf.function(lambda: hvd.allreduce(tf.zeros(2 + rank), name="t.traced"))(),
        "dtype": lambda: hvd.allreduce(tf.zeros(2, tf.float32 if rank else tf.float64), name="t.dtype"),
        "root": lambda: hvd.broadcast(tf.zeros(2), rank, name="t.root"),
        "kind": lambda: hvd.allreduce(tf.zeros(2), name="k", op=hvd.Sum if rank else hvd.Max),
        "splits": lambda: hvd.alltoall(tf.zeros(4), [9] * hvd.size()),
        "scalar allgather": lambda: hvd.allgather(tf.constant(1.0)),
        "string": lambda: hvd.allreduce(tf.constant(["text"])),
        "complex": lambda: hvd.allreduce(tf.constant([1j])),
        "op and average": lambda: hvd.allreduce(tf.zeros(2), average=True, op=both),
        "no such op": lambda: hvd.allreduce(tf.zeros(2), op=9),
        "no such root": lambda: hvd.broadcast(tf.zeros(2), 99),
        "scatter by Max": lambda: hvd.reducescatter(tf.zeros(2), op=hvd.Max),
        "compression": lambda: hvd.allreduce(tf.zeros(2), compression="fp16"),
        "unregistered set": lambda: hvd.allreduce(tf.zeros(2), process_set=hvd.ProcessSet([0])),
        "global variables": lambda: hvd.broadcast_global_variables(0),
        "jit": lambda: tf.function(lambda x: hvd.allreduce(x), jit_compile=True)(tf.zeros(2)),
        "jit within": lambda: tf.function(lambda x: tf.function(compiled, jit_compile=True)(x))(tf.zeros(2)),
    }

    def compiled(x: Any) -> Any:
        return tf.cond(x[0] > 1.0, lambda: hvd.allgather(x), lambda: x)

    said = {}
    for name, attempt in tries.items():
        try:
            attempt()
        except Exception as error:
            said[name] = (type(error).__name__, str(error))
        else:
            said[name] = ("", "")
    same(hvd.allreduce(tf.ones(2), op=hvd.Sum), np.full(2, hvd.size(), np.float32))  # the job goes on
    return said


def without_session() -> list[str]:
    """Return the classes of errors after ``shutdown``, and what a graph says of the set of all."""
    said = []
    hvd.shutdown()
    for attempt in (lambda: hvd.allreduce(tf.zeros(2)), lambda: hvd.size_op(), tf.function(lambda: hvd.rank_op())):
        try:
            attempt()
        except ERRORS.FailedPreconditionError as error:
            said.append(error.message)
    return [*said, str(hvd.process_set_included_op().numpy())]


def process_sets() -> None:
    """Collectives within a set of all ranks but the first, gradients of its members, figures of it."""
    rank, size = hvd.rank(), hvd.size()
    ranks = list(range(1, size))
    members = hvd.add_process_set(ranks)
    number = members.process_set_id
    assert hvd.process_set_included_op(number).numpy() == (1 if rank in ranks else 0)
    assert hvd.process_set_included_op(77).numpy() == -2
    assert hvd.size_op(number).numpy() == size - 1 and hvd.size_op().numpy() == size
    total = sum(one + 1.0 for one in ranks)
    if members.included():
        found = hvd.allreduce(tf.constant([1.0 + rank]), op=hvd.Sum, process_set=members)
        same(found, np.array([total], np.float32))
        assert hvd.allgather(tf.constant([rank]), process_set=members).numpy().tolist() == ranks
        rows = tf.ones((size - 1, 2))
        same(hvd.reducescatter(rows, op=hvd.Sum, process_set=members), np.full((1, 2), size - 1, np.float32))
        assert hvd.broadcast_object(rank, size - 1, process_set=members) == size - 1
        assert hvd.allgather_object(rank, process_set=members) == ranks
        with tf.GradientTape() as tape:
            tape.watch(own := tf.fill((2, 2), 1.0))
            loss = tf.reduce_sum(hvd.allgather(own, process_set=members) * (rank + 1.0))
        same(tape.gradient(loss, own), np.full((2, 2), total / (size - 1), np.float32))
    variable = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = variable * (rank + 1.0)
    [grad] = hvd.DistributedGradientTape(tape, op=hvd.Sum, process_set=members).gradient(loss, [variable])
    assert grad.numpy() == [total if members.included() else rank + 1.0]
    hvd.remove_process_set(members)


def joined() -> int:
    """Ranks have different numbers of steps; who is through contributes zeros."""
    for step in range(2 + hvd.rank()):
        there = sum(1 for rank in range(hvd.size()) if 2 + rank > step)
        same(hvd.allreduce(tf.ones(3), op=hvd.Sum, name=f"step.{step}"), np.full(3, there, np.float32))
    last = hvd.join()
    assert last.dtype == tf.int32
    return int(last)


def compressed(name: str) -> None:
    """Floating tensors travel as 16 bits, others as they are; a compressor of the script's own works too."""

    class Halves:
        @staticmethod
        def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return tensor / 2, 2.0

        @staticmethod
        def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
            return tensor * ctx

    chosen = Halves if name == "own" else getattr(hvd.Compression, name)
    own = part(hvd.rank(), (9,), "float32")
    same(hvd.allreduce(own, op=hvd.Sum, compression=chosen), expected((9,), "float32", "Sum"))
    if name != "own":
        whole = hvd.allreduce(part(hvd.rank(), (9,), "int32"), op=hvd.Sum, compression=chosen)
        same(whole, expected((9,), "int32", "Sum"))
        travelling, context = chosen.compress(own)
        assert travelling.dtype == (own.dtype if name == "none" else {"fp16": tf.float16, "bf16": tf.bfloat16}[name])
        same(chosen.decompress(travelling, context), own.numpy())


def states() -> None:
    """Variables and objects of the root, in eager mode and in a function."""
    size, rank = hvd.size(), hvd.rank()
    for traced in (False, True):
        dtypes = (tf.float32, tf.int64, tf.bool, tf.uint16, tf.complex64)
        own = [tf.Variable(tf.cast(tf.fill((2, 3), rank), dtype)) for dtype in dtypes]
        in_mode(lambda own=own: hvd.broadcast_variables(own, size - 1), traced)()
        for one in own:
            same(one.read_value(), tf.cast(tf.fill((2, 3), size - 1), one.dtype).numpy())
    pair = [tf.Variable(float(rank)), tf.Variable([rank, rank])]
    values = hvd.broadcast_(pair, 0)
    assert [one.numpy().tolist() for one in values] == [0.0, [0, 0]] and pair[0].numpy() == 0.0
    assert hvd.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
    assert hvd.broadcast_object_fn(0)(rank) == 0
    assert hvd.allgather_object([rank] * rank) == [[one] * one for one in range(size)]
    assert hvd.rank_op().numpy() == rank and hvd.local_size_op().numpy() == hvd.local_size()
    assert hvd.local_rank_op().numpy() == hvd.local_rank() and hvd.size_op().dtype == tf.int32
