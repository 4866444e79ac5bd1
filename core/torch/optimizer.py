"""`DistributedOptimizer`: any torch optimizer, stepping on gradients reduced over all ranks.

Each gradient's reduction starts in its hook during backward; `step` waits for all of them, steps, and closes the
session's step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ringtune.common.process_sets import ProcessSet, global_process_set, number_of
from ringtune.common.util import split_list
from ringtune.elastic import membership
from ringtune.errors import InvalidArgument
from ringtune.session import require, state
from ringtune.torch.adasum_optimizer import wrap_for_adasum
from ringtune.torch.arguments import Adasum, Average, check_adasum, resolve_op
from ringtune.torch.asynchronous import allreduce_
from ringtune.torch.compression import Chosen, Compression, FeedbackCompressor, resolve_compression, wished
from ringtune.torch.reducer import Reducer, ReducerOptions, reduction_of
from ringtune.torch.verify import verify_gradients

STEP_AFTER_SYNCHRONIZE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context if you "
    "use optimizer.synchronize() in your code."
)
ZERO_GRAD_IN_FLIGHT = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)

COMPRESSION_STATE = "compression"
"""Key under which `state_dict` holds the state of a compression with error feedback."""

Named = Sequence[tuple[str, torch.Tensor]]


class _Distributed(torch.optim.Optimizer):
    """What `DistributedOptimizer` puts in front of the wrapped optimizer's class."""

    _reducer: Reducer | None
    _parameter_names: dict[torch.Tensor, str]
    _should_synchronize: bool
    _synchronized: bool

    @staticmethod
    def find_duplicates(lst: Iterable[Any]) -> set[Any]:
        """Return the elements that occur more than once."""
        seen: set[Any] = set()
        return {one for one in lst if one in seen or seen.add(one)}  # type: ignore[func-returns-value]

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed up before they travel."""
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are summed up before gradients travel.

        Raises:
            InvalidArgument: Fewer than one.
        """
        self._passes = _check_passes(passes)
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, so that they can be clipped or looked at before `step`.

        Raises:
            RuntimeFailure: A reduction failed; the message names the parameter.
        """
        if self._reducer is not None:
            self._reducer.finish()
            if require().config.check:
                verify_gradients([(name, param) for param, name in self._parameter_names.items()])
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step` in the body not synchronize: `synchronize` was called already."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the gradients, then step.

        Args:
            closure: Computes the loss and its gradients; they are reduced after each call of it.

        Returns:
            What the wrapped optimizer returns.
        """
        if closure is not None:
            result: Any = super().step(self._reducing(closure))
        else:
            if self._should_synchronize:
                if self._synchronized:
                    warnings.warn(STEP_AFTER_SYNCHRONIZE, stacklevel=2)
                self.synchronize()
            result = super().step(None)
        self._synchronized = False
        session = state.current
        if session is not None:
            session.end_step()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients.

        Raises:
            AssertionError: Gradients are being reduced: it was called between backward and step.
        """
        if self._reducer is not None and self._reducer.busy:
            raise AssertionError(ZERO_GRAD_IN_FLIGHT)
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state; what is under way is waited for and forgotten."""
        if self._reducer is not None and self._reducer.busy:
            self._reducer.drain()
        elif self._reducer is not None:
            self._reducer.rest()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict({key: value for key, value in state_dict.items() if key != COMPRESSION_STATE})
        if self._reducer is not None and self._reducer.feedback is not None:
            self._reducer.feedback.load_state_dict(state_dict.get(COMPRESSION_STATE))

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with that of a compression with error feedback; the residuals belong to this rank."""
        found = super().state_dict()
        if self._reducer is not None and self._reducer.feedback is not None:
            found[COMPRESSION_STATE] = self._reducer.feedback.state_dict()
        return found

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return the closure with the gradients reduced; LBFGS decides by the loss, so it must see the same one."""
        share_loss = isinstance(self, torch.optim.LBFGS)

        def reduced() -> Any:
            with torch.enable_grad():
                loss = closure()
            if self._should_synchronize:
                self.synchronize()
            if share_loss and self._reducer is not None and isinstance(loss, torch.Tensor):
                process_set = self._reducer.options.process_set
                return allreduce_(loss.detach().clone(), name="optimizer.loss", op=Average, process_set=process_set)
            return loss

        return reduced


@dataclass(frozen=True)
class _Wishes:
    """The arguments of `DistributedOptimizer` that say how gradients are grouped and reduced."""

    op: int
    predivide: float
    groups: int | Sequence[Sequence[torch.Tensor]] | None
    passes: int


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Chosen = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wrap an optimizer so that it steps on gradients reduced over all ranks.

    Args:
        optimizer: The optimizer; its state, parameter groups and hooks are taken over.
        named_parameters: ``model.named_parameters()``; names appear in errors and in the timeline.
        compression: How gradients travel: ``Compression.fp16``, ``.bf16``, ``.powersgd(...)``, ``.topk(...)``, or a
            class like Horovod's. Without any ``RINGTUNE_COMPRESSION`` counts.
        backward_passes_per_step: Backward passes whose gradients are summed up before they travel.
        op: How gradients are combined; with ``Adasum`` it is the steps of the optimizer that are combined.
        gradient_predivide_factor: With ``Average``: divide by it before the sum, multiply by it after.
        num_groups: Deprecated, use ``groups``.
        groups: Number of groups, or lists of parameters, that are reduced together.
        sparse_as_dense: Make sparse gradients dense before they travel.
        process_set: The ranks that train together; elsewhere gradients stay as they are.

    Returns:
        An optimizer of a new class with the wrapped class's name, which is one of its bases.

    Raises:
        InvalidArgument: Names or groups do not fit the parameters, a number is out of its range, or the compression
            is none.
    """
    now = require()
    number_of(process_set)
    compression = resolve_compression(
        wished(now.config.compression) if compression is Compression.none else compression
    )
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups` and is deprecated.", DeprecationWarning, 2)
        groups = num_groups if groups is None else groups
    wishes = _Wishes(resolve_op(None, op), gradient_predivide_factor, groups, _check_passes(backward_passes_per_step))
    if gradient_predivide_factor != 1.0 and wishes.op != Average:
        raise InvalidArgument("gradient_predivide_factor not supported with op != Average")
    named = _named(optimizer, named_parameters)
    if wishes.op == Adasum and now.size > 1:
        check_adasum(process_set)
        if isinstance(compression, FeedbackCompressor):
            raise InvalidArgument(f"{compression}: compression with error feedback is not for Adasum")
        return wrap_for_adasum(optimizer, named, compression, wishes.passes)
    members = _members(wishes.groups, named)
    wrapped = _wrap(optimizer, named, wishes.passes)
    # An elastic job of one rank may have more of them later, and its hooks must be there by then.
    if process_set.included() and (now.size > 1 or membership.current() is not None):
        how = reduction_of(wishes.op, wishes.predivide, process_set)
        options = ReducerOptions(how, compression, sparse_as_dense, wishes.passes, process_set)
        wrapped._reducer = Reducer([entry for entry in named if entry[1].requires_grad], members, options)
    return wrapped


def _wrap(optimizer: torch.optim.Optimizer, named: Named, passes: int) -> Any:
    """Return an optimizer of a new class that shares state, groups and hooks with the given one."""
    base = type(optimizer)
    cls: Any = type(base.__name__, (_Distributed, base), {"__module__": __name__, "__doc__": base.__doc__})
    wrapped = cls.__new__(cls)
    # step and zero_grad may have been patched into the instance (schedulers do): those belong to the old object.
    wrapped.__dict__.update({key: value for key, value in vars(optimizer).items() if key not in ("step", "zero_grad")})
    wrapped._parameter_names = {param: name for name, param in named}
    wrapped._should_synchronize, wrapped._synchronized = True, False
    wrapped._passes = passes
    wrapped._reducer = None
    return wrapped


def _check_passes(passes: int) -> int:
    if passes <= 0:
        raise InvalidArgument(f"backward_passes_per_step must be > 0, got {passes}")
    return passes


def _named(optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None) -> Named:
    """Return name and parameter in the optimizer's order.

    Raises:
        InvalidArgument: Names are missing, double, or not in pairs.
    """
    if named_parameters is None:
        return [
            (f"allreduce.noname.{i}.{j}", param)
            for i, group in enumerate(optimizer.param_groups)
            for j, param in enumerate(group["params"])
        ]
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise InvalidArgument(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    duplicates = _Distributed.find_duplicates(name for name, _ in pairs)
    if duplicates:
        raise InvalidArgument(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(sorted(duplicates))}"
        )
    names = {param: name for name, param in pairs}
    params = [param for group in optimizer.param_groups for param in group["params"]]
    missing = sum(param not in names for param in params)
    if missing:
        raise InvalidArgument(
            f"named_parameters was specified, but {missing} of {len(params)} model parameters were not named. "
            "Python object ids don't match: did you pass the names of another model?"
        )
    return [(names[param], param) for param in params]


def _members(groups: int | Sequence[Sequence[torch.Tensor]] | None, named: Named) -> list[list[torch.Tensor]]:
    """Return the parameters of each group; those in none travel alone.

    Raises:
        InvalidArgument: Groups are no positive number or lists of the optimizer's parameters, each in one at most.
    """
    params = [param for _, param in named if param.requires_grad]
    if groups is None:
        return []
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups <= 0:
            raise InvalidArgument(f"groups should be a positive integer or a list of lists of tensors, got {groups}")
        return [part for part in split_list(params, groups) if part]
    if not isinstance(groups, (list, tuple)) or any(not isinstance(group, (list, tuple)) for group in groups):
        raise InvalidArgument("groups should be a positive integer or a list of lists of tensors")
    flat = [one for group in groups for one in group]
    if any(not isinstance(one, torch.Tensor) for one in flat):
        raise InvalidArgument("groups must consist of torch.Tensor.")
    if _Distributed.find_duplicates(id(one) for one in flat):
        raise InvalidArgument("A parameter can only appear once in groups.")
    known = set(params)
    if any(one not in known for one in flat):
        raise InvalidArgument("groups holds a tensor that is no trainable parameter of the optimizer")
    return [list(group) for group in groups if group]
