"""Reducing the gradients of a model: what `DistributedGradientTape` and the optimizers share.

In a traced function every gradient is an op of its own, which starts as soon as backpropagation has made it. In eager
mode, where all of them are there, they go in one op, and where ops wait in Python (`python_ops`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ringtune.common.process_sets import ProcessSet, global_process_set, number_of, wire_name
from ringtune.common.reductions import Adasum, Average, check_adasum
from ringtune.errors import InvalidArgument
from ringtune.tensorflow import wire
from ringtune.tensorflow.collectives import gather_slices, reduce_dense
from ringtune.tensorflow.compression import Compression, wire_number
from ringtune.tensorflow.library import through_python
from ringtune.tensorflow.naming import name_of_variable, numbered
from ringtune.tensorflow.wire import Named, Reduction


@dataclass
class GradientOptions:
    """How gradients are reduced; the arguments of `DistributedOptimizer` of the same names.

    Attributes:
        local: Variables (`key_of`) whose gradients stay this rank's own.
    """

    op: int = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: int | Sequence[Sequence[Any]] | None = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    device_dense: str = ""
    device_sparse: str = ""
    local: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not isinstance(self.op, int) or not 0 <= self.op <= 5:
            raise InvalidArgument(f"op={self.op!r}: expected Average, Sum, Adasum, Min, Max or Product")
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise InvalidArgument("gradient_predivide_factor not supported with op != Average")
        groups: Any = self.groups
        listed = isinstance(groups, (list, tuple))
        if listed and not all(isinstance(one, (list, tuple)) for one in groups):
            raise InvalidArgument("groups should be a list of lists of variables, or a number of groups")
        if not listed and groups is not None and (not isinstance(groups, int) or groups < 1):
            raise InvalidArgument(
                f"groups={groups!r}: groups should be a non-negative integer or a list of list of tf.Variable"
            )

    def reduction(self) -> Reduction:
        """Return how the runtime reduces dense gradients; a predivided average multiplies back afterwards."""
        if self.op == Adasum:
            check_adasum(self.process_set)
        factor = float(self.gradient_predivide_factor)
        number, travels = number_of(self.process_set), wire_number(self.compression, self.op)
        return Reduction(self.op, 1.0 / factor, factor, number, travels)


def groups_of(num_groups: int, groups: Any) -> Any:
    """Return the groups asked for by Horovod's old and new argument."""
    if num_groups:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0.",
            DeprecationWarning,
            stacklevel=3,
        )
        return num_groups if groups is None else groups
    return groups or None


def variable_of(variable: Any) -> Any:
    """Return the variable of TensorFlow inside one of Keras 3."""
    inner = getattr(variable, "_value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def key_of(variable: Any) -> int:
    """Return what a variable is known by; names are not unique in Keras 3."""
    return id(variable_of(variable))


def reduce_gradients(
    grads: Sequence[Any], variables: Sequence[Any], options: GradientOptions, *, generic_names: bool = False
) -> list[Any]:
    """Return gradients reduced over the ranks.

    Args:
        grads: Tensors, slices, or None, which stays None: all ranks have the same ones.
        variables: Their variables.
        options: How.
        generic_names: Name the ops by position only.

    Raises:
        NotSupported: See `ringtune.tensorflow.collectives.gather_slices`; or Adasum is not defined for these ranks.
    """
    if options.process_set.included() is False:
        return list(grads)
    how, scope = options.reduction(), numbered("gradients")
    result: list[Any] = list(grads)
    dense: dict[int, Named] = {}
    rows: dict[int, str] = {}
    for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
        if grad is None:
            continue
        if key_of(variable) in options.local:
            result[i] = _scale_local(grad, options)
            continue
        name = f"gradient.{scope}/{i}" + ("" if generic_names else f".{name_of_variable(variable)}")
        name = wire_name("allreduce", name, how.process_set)
        if isinstance(grad, tf.IndexedSlices) and not options.sparse_as_dense:
            rows[i] = name
        else:
            dense[i] = Named(name, tf.convert_to_tensor(grad))
    if options.groups:
        _put_in_groups(dense, variables, options.groups, f"gradient.{scope}")
    with tf.device(options.device_dense):
        for members in _calls(list(dense), dense):
            reduced = reduce_dense([dense[i] for i in members], how, options.compression)
            result[:] = [dict(zip(members, reduced, strict=True)).get(i, one) for i, one in enumerate(result)]
    if rows:
        plain = Reduction(options.op, process_set=how.process_set)
        with tf.device(options.device_sparse):
            slices = gather_slices([grads[i] for i in rows], list(rows.values()), plain, options.process_set)
        for i, found in zip(rows, slices, strict=True):
            result[i] = found
    return result


def _calls(indices: list[int], dense: dict[int, Named]) -> list[list[int]]:
    """Return which gradients go in one op."""
    if tf.executing_eagerly() or through_python():
        return [indices] if indices else []
    by_group: dict[str, list[int]] = {}
    for i in indices:
        by_group.setdefault(dense[i].group or f"alone {i}", []).append(i)
    return list(by_group.values())


def _put_in_groups(dense: dict[int, Named], variables: Sequence[Any], groups: Any, scope: str) -> None:
    """Say which gradients run together."""
    if isinstance(groups, int):
        count, order = min(groups, len(dense)), list(dense)
        share, more = divmod(len(order), count or 1)
        ends = [(n + 1) * share + min(n + 1, more) for n in range(count)]
        lists = [order[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    else:
        places = {key_of(variables[i]): i for i in dense}
        lists = [[places[key_of(one)] for one in group if key_of(one) in places] for group in groups]
    for number, members in enumerate(lists):
        for i in members if len(members) > 1 else ():
            dense[i] = Named(dense[i].name, dense[i].tensor, f"{scope}/group{number}", len(members))


def _scale_local(grad: Any, options: GradientOptions) -> Any:
    """Return this rank's own gradient as large as its part of an average is."""
    if not options.scale_local_gradients:
        return grad
    if isinstance(grad, tf.IndexedSlices):
        values = grad.values / wire.size_of(options.process_set, grad.dtype)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return grad / wire.size_of(options.process_set, grad.dtype)
