"""How the gradients of each backend of Keras are reduced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringtune import session
from ringtune.common.keras.optimizers import Wrapping
from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.common.reductions import Average, Min
from ringtune.errors import InvalidArgument, NotSupported


def backend_of_keras() -> str:
    """Return the backend of the installed Keras 3: ``"tensorflow"``, ``"jax"`` or ``"torch"``."""
    import keras

    name: str = keras.backend.backend()
    return name


def wrapping_for(backend: str, **options: Any) -> Wrapping:
    """Return how an optimizer's gradients are reduced.

    Args:
        backend: Of `backend_of_keras`.
        **options: Arguments of `ringtune.tensorflow.gradients.GradientOptions`, and ``passes``, ``average_passes``.

    Raises:
        InvalidArgument: An option is invalid.
        NotSupported: The backend is none of the three, or does not know an option.
    """
    passes, average = options.pop("passes", 1), options.pop("average_passes", False)
    makers = {"tensorflow": _for_tensorflow, "torch": _for_torch, "jax": _for_jax}
    if backend not in makers:
        raise NotSupported(f"ringtune.keras with the backend '{backend}': expected one of {', '.join(makers)}")
    wrapping = makers[backend](options)
    wrapping.passes, wrapping.average_passes = passes, average
    return wrapping


def _for_tensorflow(given: dict[str, Any]) -> Wrapping:
    import tensorflow as tf

    from ringtune.tensorflow.checked_calls import not_converted
    from ringtune.tensorflow.collectives import allreduce
    from ringtune.tensorflow.gradients import GradientOptions, key_of, reduce_gradients
    from ringtune.tensorflow.steps import end_step_of, optimizer_is_wrapped

    options = GradientOptions(**given)
    optimizer_is_wrapped()
    return Wrapping(
        lambda grads, variables: reduce_gradients(grads, variables, options),
        lambda variable: options.local.add(key_of(variable)),
        end_step_of,
        lambda finite: tf.cast(allreduce(tf.cast(finite, tf.int32), op=Min, process_set=options.process_set), tf.bool),
        as_it_is=not_converted,
    )


class _Local:
    """Variables whose gradients stay this rank's own, for backends without options of their own for it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.keys: set[int] = set()
        self.scales: bool = given.pop("scale_local_gradients", True)
        self.process_set: ProcessSet = given.get("process_set", global_process_set)

    def add(self, variable: Any) -> None:
        self.keys.add(id(variable))

    def split(self, grads: list[Any], variables: list[Any]) -> tuple[list[int], list[Any]]:
        """Return which gradients are reduced, and the others as they are to be applied."""
        result, reduced = list(grads), []
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if grad is None:
                continue
            if id(variable) not in self.keys:
                reduced.append(i)
            elif self.scales:
                result[i] = grad / (self.process_set.size() or 1)
        return reduced, result

    def reducer(self, exchange: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any], list[Any]], list[Any]]:
        """Return what reduces the gradients of a step by ``exchange``, all but this rank's own."""

        def reduce(grads: list[Any], variables: list[Any]) -> list[Any]:
            if self.process_set.included() is False:
                return grads
            indices, result = self.split(grads, variables)
            if indices:
                for i, one in zip(indices, exchange([grads[i] for i in indices]), strict=True):
                    result[i] = one
            return result

        return reduce


def _end_step(reduced: list[Any]) -> None:
    if session.state.current is not None:
        session.state.current.end_step()


def _check_common(given: dict[str, Any]) -> tuple[int, float, Any]:
    """Return operation, predivide factor and compression of a backend without slices, groups and devices."""
    op, factor = given.get("op", Average), float(given.get("gradient_predivide_factor", 1.0))
    if factor != 1.0 and op != Average:
        raise InvalidArgument("gradient_predivide_factor not supported with op != Average")
    return op, factor, given.get("compression")


def _own_compression(hvd: Any, compression: Any) -> Any:
    """Return a front end's own compressor for one of the same name of another."""
    names = {"NoneCompressor": "none", "FP16Compressor": "fp16", "BF16Compressor": "bf16"}
    name = names.get(getattr(compression, "__name__", "NoneCompressor"))
    return compression if name is None else getattr(hvd.Compression, name)


def _for_torch(given: dict[str, Any]) -> Wrapping:
    import torch

    import ringtune.torch as hvd

    local, (op, factor, compression) = _Local(given), _check_common(given)
    own, process_set = _own_compression(hvd, compression), local.process_set

    def exchange(grads: list[Any]) -> Any:
        return hvd.grouped_allreduce(grads, None, "keras.gradients", own, op, 1.0 / factor, factor, process_set)

    def agree(finite: Any) -> Any:
        return hvd.allreduce(finite.to(torch.int32), name="keras.finite", op=Min, process_set=process_set).bool()

    return Wrapping(local.reducer(exchange), local.add, _end_step, agree)


def _for_jax(given: dict[str, Any]) -> Wrapping:
    import jax.numpy as jnp

    import ringtune.jax as hvd
    from ringtune.jax.collectives import reduce_gradients

    local, (op, factor, compression) = _Local(given), _check_common(given)
    own, process_set = _own_compression(hvd, compression), local.process_set

    def exchange(grads: list[Any]) -> Any:
        return reduce_gradients(grads, op, "keras.gradients", own, factor, process_set)

    def agree(finite: Any) -> Any:
        told = hvd.allreduce(finite.astype(jnp.int32), name="keras.finite", op=Min, process_set=process_set)
        return told.astype(bool)

    # The program that reduces marks the end of a step itself.
    return Wrapping(local.reducer(exchange), local.add, lambda reduced: None, agree)
