"""`DistributedOptimizer`: any torch optimizer, stepping on gradients reduced over all ranks.

Each gradient's reduction starts in its hook during backward; `step` waits for all of them, steps, and closes the
session's step.
"""

from __future__ import annotations

import functools
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from ringtune.common.process_sets import ProcessSet, global_process_set, number_of, registered_set
from ringtune.elastic import membership
from ringtune.errors import InvalidArgument, RingtuneError
from ringtune.session import require, state
from ringtune.torch.adasum_optimizer import wrap_for_adasum
from ringtune.torch.arguments import Adasum, Average, check_adasum, resolve_op
from ringtune.torch.asynchronous import allreduce_
from ringtune.torch.compression import Chosen, Compression, FeedbackCompressor, resolve_compression, wished
from ringtune.torch.parameters import Named, complete, find_duplicates, members_of, name_all
from ringtune.torch.reducer import Reducer
from ringtune.torch.submission import ReducerOptions, reduction_of
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

_WRAPPING = "distributed"
"""Key under which a copied or pickled optimizer holds how gradients are reduced."""


class _Distributed(torch.optim.Optimizer):
    """Mixin that `DistributedOptimizer` puts in front of the wrapped optimizer's class."""

    _reducer: Reducer | None
    _parameter_names: dict[torch.Tensor, str]
    _known_names: dict[torch.Tensor, str]
    _wishes: _Wishes
    _should_synchronize: bool
    _synchronized: bool

    @staticmethod
    def find_duplicates(lst: Iterable[Any]) -> set[Any]:
        """Return the elements that occur more than once."""
        return find_duplicates(lst)

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed up before they travel."""
        return self._wishes.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are summed up before gradients travel.

        Raises:
            InvalidArgument: Fewer than one.
        """
        self._wishes = replace(self._wishes, passes=_check_passes(passes))
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, so that they can be clipped or looked at before `step`.

        Raises:
            RuntimeFailure: A reduction failed; the message names the parameter.
            InvalidArgument: A gradient was changed while it was being reduced.
        """
        self._follow()
        if self._reducer is not None:
            try:
                self._reducer.finish()
            except InvalidArgument:  # usually this rank's failure alone: the others compare anyway
                with suppress(RingtuneError):
                    self._verify()
                raise
            self._verify()
        self._synchronized = True

    def _verify(self) -> None:
        if require().config.check:
            verify_gradients([(name, param) for param, name in self._parameter_names.items()])

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
        self._synchronized = False
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state; pending reductions are waited for, and their results dropped."""
        if self._reducer is not None and self._reducer.busy:
            self._reducer.drain()
        elif self._reducer is not None:
            self._reducer.rest()
        self._synchronized = False
        self._should_synchronize = True
        groups, states = self.param_groups, self.state
        super().load_state_dict({key: value for key, value in state_dict.items() if key != COMPRESSION_STATE})
        # The wrapped optimizer and the schedulers that were made for it hold the same groups and the same state.
        for group, loaded in zip(groups, self.param_groups, strict=True):
            group.update(loaded)
        states.clear()
        states.update(self.state)
        self.param_groups, self.state = groups, states
        if self._reducer is not None and self._reducer.feedback is not None:
            self._reducer.feedback.load_state_dict(state_dict.get(COMPRESSION_STATE))

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with that of a compression with error feedback; the residuals belong to this rank."""
        found = super().state_dict()
        if self._reducer is not None and self._reducer.feedback is not None:
            found[COMPRESSION_STATE] = self._reducer.feedback.state_dict()
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: the optimizer's state, names and how gradients are reduced; nothing under way."""
        found: dict[str, Any] = super().__getstate__()
        names = {id(param): name for param, name in self._known_names.items()}
        params = [param for group in self.param_groups for param in group["params"]]
        found[_WRAPPING] = self._wishes, [names.get(id(param)) for param in params]
        return found

    def __setstate__(self, state_dict: dict[str, Any]) -> None:
        """Take over what `__getstate__` gave; a copy is hooked when it is used first."""
        wrapping = state_dict.pop(_WRAPPING, None)
        super().__setstate__(state_dict)
        if wrapping is None:
            return
        wishes, names = wrapping
        params = [param for group in self.param_groups for param in group["params"]]
        named = [(name, param) for name, param in zip(names, params, strict=True) if name is not None]
        _prepare(self, named, wishes)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the wrapped class: this one is made at run time."""
        return _remake, (type(self).__mro__[2],), self.__getstate__()

    def _follow(self) -> None:
        """Make the reducer when it is missing, and let it see parameters that came, went or were replaced."""
        if self._reducer is None and not _trains_together(self._wishes.process_set):
            return
        params = [param for group in self.param_groups for param in group["params"]]
        known = self._parameter_names
        if self._reducer is not None and len(params) == len(known) and all(map(operator.is_, params, known)):
            return
        named = complete(self.param_groups, self._known_names)
        self._parameter_names = {param: name for name, param in named}
        if self._reducer is not None:
            self._reducer.follow(named)
            return
        self._reducer = _reducer_of(named, self._wishes)
        weakref.finalize(self, self._reducer.close)

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
    compression: Chosen = Compression.none
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments without what belongs to this job: a process set becomes its ranks."""
        ranks = None if self.process_set is global_process_set else self.process_set.ranks
        return {**vars(self), "process_set": ranks}

    def __setstate__(self, values: dict[str, Any]) -> None:
        ranks = values["process_set"]
        self.__dict__.update(values, process_set=global_process_set if ranks is None else registered_set(ranks))


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
    passes = _check_passes(backward_passes_per_step)
    wishes = _Wishes(
        resolve_op(None, op), gradient_predivide_factor, groups, passes, compression, sparse_as_dense, process_set
    )
    if gradient_predivide_factor != 1.0 and wishes.op != Average:
        raise InvalidArgument("gradient_predivide_factor not supported with op != Average")
    named, known = name_all(optimizer, named_parameters)
    if wishes.op == Adasum and now.size > 1:
        check_adasum(process_set)
        if isinstance(compression, FeedbackCompressor):
            raise InvalidArgument(f"{compression}: compression with error feedback is not for Adasum")
        return wrap_for_adasum(optimizer, named, compression, wishes.passes)
    members_of(wishes.groups, named)
    wrapped = _remake(type(optimizer))
    # step and zero_grad may have been patched into the instance (schedulers do): those belong to the old object.
    wrapped.__dict__.update({key: value for key, value in vars(optimizer).items() if key not in ("step", "zero_grad")})
    _prepare(wrapped, named, wishes)
    wrapped._known_names.update(known)
    wrapped._follow()
    return wrapped


@functools.cache
def _wrapping_class(base: Any) -> Any:
    """Return the class with the wrapped class's name that reduces gradients."""
    return type(base.__name__, (_Distributed, base), {"__module__": __name__, "__doc__": base.__doc__})


def _remake(base: Any) -> Any:
    """Return an optimizer whose state is to be set: a copy, or one that was pickled."""
    cls = _wrapping_class(base)
    return cls.__new__(cls)


def _prepare(wrapped: Any, named: Named, wishes: _Wishes) -> None:
    wrapped._parameter_names = {param: name for name, param in named}
    wrapped._known_names = dict(wrapped._parameter_names)
    wrapped._should_synchronize, wrapped._synchronized = True, False
    wrapped._wishes = wishes
    wrapped._reducer = None


def _trains_together(process_set: ProcessSet) -> bool:
    """Return whether gradients of this process are reduced."""
    now = state.current
    # An elastic job of one rank may have more of them later, and its hooks must be there by then.
    several = now is not None and (now.size > 1 or membership.current() is not None)
    return several and bool(process_set.included())


def _reducer_of(named: Named, wishes: _Wishes) -> Reducer:
    reduction = reduction_of(wishes.op, wishes.predivide, wishes.process_set)
    options = ReducerOptions(reduction, wishes.compression, wishes.sparse_as_dense, wishes.passes, wishes.process_set)
    return Reducer(named, members_of(wishes.groups, named), options)


def _check_passes(passes: int) -> int:
    if passes <= 0:
        raise InvalidArgument(f"backward_passes_per_step must be > 0, got {passes}")
    return passes
