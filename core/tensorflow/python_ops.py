"""The ops through Python, for a TensorFlow that takes no asynchronous kernels from others (before 2.13).

Each is one `tf.numpy_function`, which waits for the other ranks: what is to be in flight together goes in one call. A
`tf.function` runs such calls in the order in which it was traced, so that all ranks wait for the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from ringtune import session
from ringtune.common.handles import Pending
from ringtune.errors import RingtuneError
from ringtune.numpy.arrays import Array, address, gathered, like, number_of_dtype, readable, received_splits
from ringtune.numpy.collectives import handles
from ringtune.operations import Allgather, Allreduce, Alltoall, Barrier, Broadcast, Join, Operation, Reducescatter

Body = Callable[..., Sequence[Any]]


class PythonOps:
    """Has the functions that TensorFlow makes of the library's ops (``native/frameworks/tensorflow_ops.cc``)."""

    def ringtune_allreduce(self, tensors: Sequence[Any], wire: int, **how: Any) -> list[Any]:
        """Reduce over the ranks."""

        def body(*arrays: Array) -> Sequence[Any]:
            results = [like(array) for array in arrays]
            return _run(
                [
                    Allreduce(
                        name, address(array), address(result), array.shape, number_of_dtype(array, name, reduces=True),
                        how["reduction"], float(how["prescale"]), float(how["postscale"]), group, size,
                        how["process_set"], wire if array.dtype.kind not in "iub" else -1,
                    )
                    for name, group, size, array, result in _members(how, arrays, results)
                ],
                results,
            )  # fmt: skip

        return _op("RingtuneAllreduce", tensors, body, {**how, "wire": wire}, rows=False)

    def ringtune_reducescatter(self, tensors: Sequence[Any], **how: Any) -> list[Any]:
        """Reduce over the ranks; each gets its share of the rows."""

        def body(*arrays: Array) -> Sequence[Any]:
            size, place = _figure("size", how["process_set"]), _figure("set_rank", how["process_set"])
            results = [
                like(array, array.shape[0] // size + (place < array.shape[0] % size)) if array.ndim else array
                for array in arrays
            ]
            return _run(
                [
                    Reducescatter(
                        name, address(array), address(result), array.shape, number_of_dtype(array, name, reduces=True),
                        how["reduction"], float(how["prescale"]), float(how["postscale"]), group, members,
                        how["process_set"],
                    )
                    for name, group, members, array, result in _members(how, arrays, results)
                ],
                results,
            )  # fmt: skip

        return _op("RingtuneReducescatter", tensors, body, how, rows=True)

    def ringtune_allgather(self, tensors: Sequence[Any], **how: Any) -> list[Any]:
        """Join the rows of all ranks."""

        def body(*arrays: Array) -> Sequence[Any]:
            operations = [
                Allgather(name, address(array), array.shape, number_of_dtype(array, name), how["process_set"])
                for name, array in zip(how["names"], arrays, strict=True)
            ]
            return _run(operations, arrays, take=gathered)

        return _op("RingtuneAllgather", tensors, body, how, rows=True)

    def ringtune_broadcast(self, tensors: Sequence[Any], **how: Any) -> list[Any]:
        """Give all ranks the root's tensors."""

        def body(*arrays: Array) -> Sequence[Any]:
            results = [like(array) for array in arrays]
            operations = [
                Broadcast(
                    name, address(array), address(result), array.shape, number_of_dtype(array, name), how["root"],
                    how["process_set"],
                )
                for name, array, result in zip(how["names"], arrays, results, strict=True)
            ]  # fmt: skip
            return _run(operations, results)

        return _op("RingtuneBroadcast", tensors, body, how, rows=False)

    def ringtune_alltoall(self, tensor: Any, splits: Any, tensor_name: str, process_set: int) -> list[Any]:
        """Send rows to each rank; return what came, and how many rows from each."""

        def body(array: Array, counts: Array) -> Sequence[Any]:
            number = number_of_dtype(array, tensor_name)
            operation = Alltoall(tensor_name, address(array), array.shape, number, counts.tolist(), process_set)
            received: list[Array] = []

            def take(ticket: int, one: Array) -> Array:
                received.append(received_splits(ticket, one))
                return gathered(ticket, one)

            return [*_run([operation], [array], take=take), *received]

        how = {"tensor_name": tensor_name, "process_set": process_set}
        return _op("RingtuneAlltoall", [tensor, splits], body, how, rows=True)

    def ringtune_meet(self, kind: str, tensor_name: str, process_set: int) -> Any:
        """Wait for the other ranks; return who joined last, or 0."""

        def body() -> Sequence[Any]:
            if kind == "join":
                return [np.int32(session.require().decide(Join(tensor_name)))]
            _run([Barrier(tensor_name, process_set)], [])
            return [np.int32(0)]

        return _scalar(body)

    def ringtune_ask(self, what: str, process_set: int, name: str | None = None) -> Any:
        """Return a figure of the job as it is when the op runs."""
        return _scalar(lambda: [np.int32(_figure(what, process_set))], name)

    def ringtune_end_step(self) -> Any:
        """End a step of the training."""

        def body() -> Sequence[Any]:
            session.require().end_step()
            return [np.int32(0)]

        return _scalar(body)


def _members(how: dict[str, Any], arrays: Sequence[Array], results: Sequence[Array]) -> Any:
    return zip(how["names"], how["groups"], how["group_sizes"], arrays, results, strict=True)


def _run(
    operations: Sequence[Operation], results: Sequence[Array], take: Callable[[int, Array], Array] | None = None
) -> list[Array]:
    """Wait for operations that are submitted together.

    Args:
        operations: One for each tensor, or one without any.
        results: Where their results are, or what they are like.
        take: Makes a result of a ticket and what it is like.
    """

    def start() -> int:
        now = session.require()
        tickets = [now.submit(one) for one in operations]

        def finish() -> list[Array]:
            if take is None:
                return list(results)
            return [take(ticket, result) for ticket, result in zip(tickets, results, strict=True)]

        return handles.register(Pending(tickets, finish, [results]))

    found: list[Array] = handles.at_once(start)
    return found


def _figure(what: str, process_set: int) -> int:
    """Return a figure as the kernel of the op does."""
    if session.state.current is None and what == "included":
        return -1
    now = session.require()
    if what in ("rank", "local_rank", "local_size"):
        return int(getattr(now, what))
    members = now.process_sets().get(process_set)
    if members is None:
        if what == "included":
            return -2
        raise RingtuneError(f"there is no process set {process_set}")
    if what == "size":
        return len(members)
    inside = now.rank in members
    if what == "included":
        return int(inside)
    return members.index(now.rank) if inside else len(members)


def _in_python(body: Body, inputs: Sequence[Any], dtypes: Sequence[Any], name: str | None = None) -> list[Any]:
    """Return the results of a body, whose errors of ringtune are found in TensorFlow's as those of the kernels are."""

    def call(*arrays: Any) -> Sequence[Any]:
        try:
            return [np.asarray(one) for one in body(*(readable(np.asarray(array)) for array in arrays))]
        except RingtuneError as error:
            raise RuntimeError(f"ringtune.errors.{type(error).__name__}: {error}") from None

    if not tf.executing_eagerly():
        return list(tf.nest.flatten(tf.numpy_function(call, list(inputs), list(dtypes), name=name)))
    try:
        return [tf.convert_to_tensor(one) for one in call(*(one.numpy() for one in inputs))]
    except RuntimeError as error:
        raise tf.errors.UnknownError(None, None, str(error)) from error


def _scalar(body: Body, name: str | None = None) -> Any:
    [found] = _in_python(body, [], [tf.int32], name)
    return tf.ensure_shape(found, [])


def _op(kind: str, tensors: Sequence[Any], body: Body, attributes: dict[str, Any], *, rows: bool) -> list[Any]:
    """Return an op's results, which have the derivative that is registered for the kind.

    Args:
        kind: Type of the op.
        tensors: Its inputs; as many results come of it, of the same dtypes.
        body: Does it on arrays.
        attributes: For its derivative.
        rows: Results may have another number of rows.
    """

    def run(*inputs: Any) -> Any:
        outputs = _in_python(body, inputs, [one.dtype for one in inputs])
        for output, one in zip(outputs, inputs, strict=True):
            if not tf.executing_eagerly():
                known = one.shape.rank is not None and one.shape.rank > 0 and rows
                output.set_shape([None, *one.shape[1:]] if known else one.shape)

        def derivative(*grads: Any) -> Any:
            op = SimpleNamespace(type=kind, inputs=inputs, outputs=outputs, get_attr=attributes.__getitem__)
            return gradient_registry.lookup(kind)(op, *grads)

        return outputs, derivative

    from tensorflow.python.framework.ops import gradient_registry

    found: list[Any] = list(tf.custom_gradient(run)(*(tf.convert_to_tensor(one) for one in tensors)))
    return found
