"""The ops as the rest of the front end makes them: several tensors in one op, each with a name of its own.

Everything here takes and returns lists of dense tensors. An op in a graph is asynchronous: it keeps no thread while it
waits for the other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from ringtune.common.process_sets import ProcessSet, number_of
from ringtune.common.reductions import Average, Sum
from ringtune.operations import group_names
from ringtune.tensorflow.library import ops


@dataclass(frozen=True)
class Reduction:
    """How tensors are reduced: operation, factors, number of the process set and of the dtype to travel as."""

    op: int
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0
    wire: int = -1

    def as_attributes(self) -> dict[str, Any]:
        """Return the attributes of an op; factors as text, since a float of TensorFlow's attributes has 32 bits."""
        return {
            "reduction": self.op,
            "prescale": repr(float(self.prescale)),
            "postscale": repr(float(self.postscale)),
            "process_set": self.process_set,
        }


@dataclass(frozen=True)
class Named:
    """A tensor with its name on the wire, and the group that it waits for.

    Attributes:
        name: The same on all ranks.
        tensor: What is sent.
        group: Name of the group; empty: none.
        group_size: Tensors in it.
    """

    name: str
    tensor: Any
    group: str = ""
    group_size: int = 0


def grouped(name: str, tensors: Sequence[Any]) -> list[Named]:
    """Return tensors that run together: when all of them are ready on all ranks."""
    size = len(tensors)
    return [Named(own, one, name, size) for own, one in zip(group_names(name, size), tensors, strict=True)]


def allreduce(named: Sequence[Named], how: Reduction) -> list[Any]:
    """Reduce over the ranks."""
    return list(
        ops().ringtune_allreduce(
            **_tensors(named), groups=_groups(named), group_sizes=_sizes(named), wire=how.wire, **how.as_attributes()
        )
    )


def reducescatter(named: Sequence[Named], how: Reduction) -> list[Any]:
    """Reduce over the ranks; each gets its share of the rows."""
    return list(
        ops().ringtune_reducescatter(
            **_tensors(named), groups=_groups(named), group_sizes=_sizes(named), **how.as_attributes()
        )
    )


def allgather(named: Sequence[Named], process_set: int) -> list[Any]:
    """Join the rows of all ranks."""
    return list(ops().ringtune_allgather(**_tensors(named), process_set=process_set))


def broadcast(named: Sequence[Named], root_rank: int, process_set: int) -> list[Any]:
    """Give all ranks the root's tensors."""
    return list(ops().ringtune_broadcast(**_tensors(named), root=root_rank, process_set=process_set))


def alltoall(name: str, tensor: Any, splits: Any, process_set: int) -> tuple[Any, Any]:
    """Send ``splits`` rows to each rank (none: equal shares); return what came, and how many rows from each."""
    given = tf.zeros([0], tf.int32) if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int32)
    found = ops().ringtune_alltoall(tensor=tensor, splits=given, tensor_name=name, process_set=process_set)
    return found[0], found[1]


def meet(kind: str, name: str, process_set: int) -> Any:
    """Wait for the other ranks (``"join"`` or ``"barrier"``); return who joined last, or 0."""
    return ops().ringtune_meet(kind=kind, tensor_name=name, process_set=process_set)


def ask(what: str, process_set: int, name: str | None = None) -> Any:
    """Return a figure of the job as it is when the op runs, an int32 scalar."""
    return ops().ringtune_ask(what=what, process_set=process_set, name=name)


def size_of(process_set: ProcessSet, dtype: tf.DType) -> Any:
    """Return the number of ranks of a set: when a graph runs, for the graph may outlive a change of ranks."""
    if tf.executing_eagerly():
        return tf.cast(process_set.size() or 1, dtype)
    return tf.cast(ask("size", number_of(process_set)), dtype)


def _tensors(named: Sequence[Named]) -> dict[str, Any]:
    return {"tensors": [one.tensor for one in named], "names": [one.name for one in named]}


def _groups(named: Sequence[Named]) -> list[str]:
    return [one.group for one in named]


def _sizes(named: Sequence[Named]) -> list[int]:
    return [one.group_size for one in named]


# -- gradients: each collective's is a collective again, under the same name with ".grad" ------------------------------


def _attribute(op: Any, name: str) -> Any:
    value = op.get_attr(name)
    if isinstance(value, (list, tuple)):
        return [one.decode() if isinstance(one, bytes) else one for one in value]
    return value.decode() if isinstance(value, bytes) else value


def _reduction(op: Any) -> Reduction:
    factors = (float(_attribute(op, "prescale")), float(_attribute(op, "postscale")))
    return Reduction(_attribute(op, "reduction"), *factors, _attribute(op, "process_set"))


def _given(op: Any, grads: Sequence[Any]) -> tuple[list[int], list[Named]]:
    """Return which tensors of an op have a derivative, and the gradients of its outputs for them.

    An output that is not used gets zeros: other ranks may use theirs.
    """
    indices = [i for i, one in enumerate(op.outputs) if one.dtype.is_floating]
    names = _attribute(op, "names")
    groups = _attribute(op, "groups") if op.type in _GROUPED else [""] * len(names)
    named = []
    for i in indices:
        grad = tf.zeros_like(op.outputs[i]) if grads[i] is None else tf.convert_to_tensor(grads[i])
        members = [j for j in indices if groups[j] == groups[i]] if groups[i] else []
        named.append(Named(f"{names[i]}.grad", grad, groups[i] and f"{groups[i]}.grad", len(members)))
    return indices, named


_GROUPED = ("RingtuneAllreduce", "RingtuneReducescatter")


def _gradient_of(kind: str) -> Callable[[Callable[..., list[Any]]], Callable[..., list[Any]]]:
    """Register a function as the derivative of an op."""
    register: Callable[[Callable[..., list[Any]]], Callable[..., list[Any]]] = tf.RegisterGradient(kind)
    return register


def _spread(op: Any, indices: Sequence[int], found: Sequence[Any]) -> list[Any]:
    by_index = dict(zip(indices, found, strict=True))
    return [by_index.get(i) for i in range(len(op.outputs))]


@_gradient_of("RingtuneAllreduce")
def _allreduce_gradient(op: Any, *grads: Any) -> list[Any]:
    indices, named = _given(op, grads)
    how = replace(_reduction(op), wire=_attribute(op, "wire"))
    return _spread(op, indices, allreduce(named, how) if named else [])


@_gradient_of("RingtuneAllgather")
def _allgather_gradient(op: Any, *grads: Any) -> list[Any]:
    indices, named = _given(op, grads)
    if not named:
        return [None] * len(grads)
    process_set = _attribute(op, "process_set")
    rows = [Named(f"{one.name}.rows", tf.shape(op.inputs[i])[:1]) for i, one in zip(indices, named, strict=True)]
    gathered = allgather(rows, process_set)
    reduced = allreduce(named, Reduction(Average, process_set=process_set))
    place = ask("set_rank", process_set)
    shares = []
    for i, grad, counts in zip(indices, reduced, gathered, strict=True):
        begin = tf.reduce_sum(counts[:place])
        shares.append(tf.ensure_shape(grad[begin : begin + counts[place]], op.inputs[i].shape))
    return _spread(op, indices, shares)


@_gradient_of("RingtuneBroadcast")
def _broadcast_gradient(op: Any, *grads: Any) -> list[Any]:
    indices, named = _given(op, grads)
    if not named:
        return [None] * len(grads)
    reduced = allreduce(named, Reduction(Average, process_set=_attribute(op, "process_set")))
    here = tf.equal(ask("rank", 0), _attribute(op, "root"))
    return _spread(op, indices, [tf.where(here, one, tf.zeros_like(one)) for one in reduced])


@_gradient_of("RingtuneAlltoall")
def _alltoall_gradient(op: Any, *grads: Any) -> list[Any]:
    if not op.outputs[0].dtype.is_floating:
        return [None, None]
    grad = tf.zeros_like(op.outputs[0]) if grads[0] is None else tf.convert_to_tensor(grads[0])
    name, process_set = _attribute(op, "tensor_name"), _attribute(op, "process_set")
    back, _ = alltoall(f"{name}.grad", grad, op.outputs[1], process_set)
    return [tf.ensure_shape(back, op.inputs[0].shape), None]


@_gradient_of("RingtuneReducescatter")
def _reducescatter_gradient(op: Any, *grads: Any) -> list[Any]:
    indices, named = _given(op, grads)
    if not named:
        return [None] * len(grads)
    how = _reduction(op)
    factor = tf.constant(how.prescale * how.postscale, tf.float64)
    if how.op == Sum:
        factor *= tf.cast(ask("size", how.process_set), tf.float64)
    gathered = allgather([replace(one, group="", group_size=0) for one in named], how.process_set)
    scaled = [
        tf.ensure_shape(one * tf.cast(factor, one.dtype), op.inputs[i].shape)
        for i, one in zip(indices, gathered, strict=True)
    ]
    return _spread(op, indices, scaled)


for _kind in ("RingtuneMeet", "RingtuneAsk"):
    tf.no_gradient(_kind)
