"""Wrapping optimizers of Keras: their gradients are reduced where the optimizer applies them.

Keras 3 has one class of optimizers for TensorFlow, JAX and torch, and all of its trainers end in ``apply``: a class is
derived from the optimizer's own that reduces there. Horovod's way, which overrides ``compute_gradients`` and its like,
is accepted by Keras 3 and never called. Optimizers of Keras 2 are wrapped where they apply gradients too.

The wrapped optimizer shares all attributes of the given one, so slots, iterations and learning rate are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ringtune.errors import InvalidArgument, NotSupported

Reduce = Callable[[list[Any], list[Any]], list[Any]]


@dataclass
class Wrapping:
    """What a wrapped optimizer does with its gradients.

    Attributes:
        reduce: Takes gradients (None where there is none) and their variables, returns reduced gradients.
        register_local: Keeps the gradient of a variable this rank's own.
        end_step: Marks the end of a step, once these reduced gradients are there.
        agree: Returns whether something holds on all ranks: a tensor of one truth value.
        passes: Backward passes whose gradients are summed up before they travel.
        average_passes: Whether their sum is divided by their number.
        as_it_is: Keeps a backend's compiler of Python code from a method.
    """

    reduce: Reduce
    register_local: Callable[[Any], None]
    end_step: Callable[[list[Any]], None]
    agree: Callable[[Any], Any]
    passes: int = 1
    average_passes: bool = False
    as_it_is: Callable[[Any], Any] = lambda method: method


class _Wrapped:
    """What all wrapped optimizers have."""

    _ringtune: Wrapping

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable this rank's own."""
        self._ringtune.register_local(var)


class _Keras3(_Wrapped):
    """Stands before a class of optimizers of Keras 3."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """Apply the gradients of all ranks.

        Args:
            grads: One for each variable, or None.
            trainable_variables: Their variables; default: those that the optimizer was built with.
        """
        how, grads = self._ringtune, list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)  # type: ignore[attr-defined]
        if grads and len(grads) == len(variables):
            grads = how.reduce(grads, variables)
            how.end_step(grads)
            if how.passes > 1 and not how.average_passes:  # Keras averages what it accumulates
                grads = [None if one is None else one * how.passes for one in grads]
        return super().apply(grads, trainable_variables)  # type: ignore[misc]


class _Keras2(_Wrapped):
    """Stands before a class of optimizers of Keras 2."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply the gradients of all ranks; arguments are the optimizer's own."""
        how, pairs = self._ringtune, list(grads_and_vars)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        apply = super().apply_gradients  # type: ignore[misc]
        if how.passes > 1:
            from ringtune.tensorflow.keras.passes import apply_in_last_pass

            return apply_in_last_pass(self, how, grads, variables, lambda found: apply(found, *args, **kwargs))
        reduced = how.reduce(grads, variables)
        how.end_step(reduced)
        return apply(list(zip(reduced, variables, strict=True)), *args, **kwargs)


def is_keras_3(optimizer: Any) -> bool:
    """Return whether an optimizer is one of Keras 3."""
    return hasattr(optimizer, "stateless_apply")


def wrap(optimizer: Any, wrapping: Wrapping) -> Any:
    """Return an optimizer like the given one, with its state, whose gradients are reduced.

    Args:
        optimizer: An optimizer of Keras 3 or Keras 2. A ``LossScaleOptimizer`` of Keras 3 is returned itself: the
            optimizer within it is wrapped, and the ranks agree on whether the gradients are finite.
        wrapping: How.

    Raises:
        InvalidArgument: It is wrapped already.
        NotSupported: ``keras.distribution`` spans several processes.
    """
    if isinstance(optimizer, _Wrapped):
        raise InvalidArgument("DistributedOptimizer: the optimizer is wrapped already; its gradients are reduced once")
    if not is_keras_3(optimizer):
        return _derived(optimizer, _Keras2, wrapping)
    _refuse_distribution()
    if hasattr(optimizer, "inner_optimizer"):
        _agree_on_finite_gradients()
        optimizer.inner_optimizer = wrap(optimizer.inner_optimizer, wrapping)
        return optimizer
    _agree_on_finite_gradients()
    if wrapping.passes > 1:
        if optimizer.built:
            raise InvalidArgument(
                "backward_passes_per_step > 1: the optimizer has been built already, and Keras makes its sums of "
                "gradients then; wrap it before the model is compiled"
            )
        optimizer.gradient_accumulation_steps = wrapping.passes
    return _derived(optimizer, _Keras3, wrapping)


def _derived(optimizer: Any, before: type, wrapping: Wrapping) -> Any:
    """Return an object with the same attributes, of a class of the same name: Keras finds that in a saved file."""
    own = type(optimizer)
    members = {name: wrapping.as_it_is(one) for name, one in vars(before).items() if not name.startswith("_")}
    kind = type(own.__name__, (before, own), {**members, "__module__": own.__module__, "__doc__": own.__doc__})
    wrapped: Any = object.__new__(kind)
    object.__setattr__(wrapped, "__dict__", optimizer.__dict__)
    wrapped.__dict__["_ringtune"] = wrapping
    return wrapped


def _refuse_distribution() -> None:
    import keras

    module = getattr(keras, "distribution", None)
    current = None if module is None else module.distribution()
    if current is not None and getattr(current, "_num_process", 2) > 1:
        raise NotSupported(
            "DistributedOptimizer while keras.distribution spans several processes: it reduces gradients itself, and "
            "they would be reduced twice. Call keras.distribution.set_distribution(None), or do not wrap the optimizer"
        )


@functools.cache
def _agree_on_finite_gradients() -> None:
    """Let a ``LossScaleOptimizer`` skip a step on all ranks or on none.

    Its own check looks at this rank's gradients, and the ranks whose gradients are finite would wait for the others.
    Keras makes one around the optimizer of a model in mixed precision, after it was wrapped.
    """
    from keras.optimizers import LossScaleOptimizer

    own = LossScaleOptimizer.check_finite

    @functools.wraps(own)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = own(self, grads)
        inner = self.inner_optimizer
        return inner._ringtune.agree(finite) if isinstance(inner, _Wrapped) else finite

    LossScaleOptimizer.check_finite = check_finite
