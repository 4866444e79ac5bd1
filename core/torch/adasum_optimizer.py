"""`DistributedOptimizer(op=Adasum)`: combines the ranks' parameter updates instead of their gradients.

Each rank steps on its own gradients; the difference that the step made to every parameter is combined by Adasum, and
the parameters become their old values plus the combination.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ringtune.session import state
from ringtune.torch import handles
from ringtune.torch.arguments import Adasum
from ringtune.torch.asynchronous import allreduce_async_
from ringtune.torch.compression import Chosen
from ringtune.torch.parameters import complete
from ringtune.torch.slots import TOO_MANY_PASSES

NO_SKIP = "Skipping synchronization is not supported when using Adasum optimizer."


class _Adasum(torch.optim.Optimizer):
    """Mixin that `wrap_for_adasum` puts in front of the wrapped optimizer's class."""

    _parameter_names: dict[torch.Tensor, str]
    _compression: Chosen
    _passes: int
    _left: dict[torch.Tensor, int]

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed up before a step."""
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are summed up before a step."""
        self._passes = passes
        self._rest()

    def synchronize(self) -> None:
        """Do nothing: it is the step that is combined."""

    def skip_synchronize(self) -> None:
        """Refuse.

        Raises:
            AssertionError: Always, in Horovod's words.
        """
        raise AssertionError(NO_SKIP)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on the own gradients and combine the updates of all ranks.

        Returns:
            What the wrapped optimizer returns.

        Raises:
            RuntimeFailure: The combination failed; the parameters are what they were before.
        """
        # All parameters take part: one that only another rank has thawed or added moves on every rank.
        params = [param for _, param in complete(self.param_groups, self._parameter_names)]
        with torch.no_grad():
            before = [param.detach().clone() for param in params]
        result: Any = super().step(closure)
        with torch.no_grad():
            for param, old in zip(params, before, strict=True):
                param.sub_(old)  # the update, in the parameter's memory
            try:
                deltas = self._combine(params)
            finally:
                for param, old in zip(params, before, strict=True):
                    param.copy_(old)
            for param, delta in zip(params, deltas, strict=True):
                param.add_(delta)
        self._rest()
        if state.current is not None:
            state.current.end_step()
        return result

    def _combine(self, params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        started = []
        for param in params:
            small, context = self._compression.compress(param.detach().clone())
            handle = allreduce_async_(small, name=self._parameter_names[param], op=Adasum)
            started.append((handle, context))
        return [self._compression.decompress(handles.synchronize(handle), context) for handle, context in started]

    def _rest(self) -> None:
        self._left = dict.fromkeys(self._parameter_names, self._passes)

    def _count(self, param: torch.Tensor) -> None:
        self._left[param] = self._left.get(param, self._passes) - 1
        if self._left[param] < 0:
            raise AssertionError(TOO_MANY_PASSES)


def wrap_for_adasum(
    optimizer: torch.optim.Optimizer,
    named: Sequence[tuple[str, torch.Tensor]],
    compression: Chosen,
    passes: int,
) -> Any:
    """Return an optimizer of a new class that shares state, groups and hooks with the given one."""
    base = type(optimizer)
    module = "ringtune.torch.optimizer"  # by which broadcast_optimizer_state of Horovod's scripts recognises it
    cls: Any = type(base.__name__, (_Adasum, base), {"__module__": module, "__doc__": base.__doc__})
    wrapped = cls.__new__(cls)
    # step and zero_grad may have been patched into the instance (schedulers do): those belong to the old object.
    wrapped.__dict__.update({key: value for key, value in vars(optimizer).items() if key not in ("step", "zero_grad")})
    wrapped._parameter_names = {param: name for name, param in named}
    wrapped._compression = compression
    wrapped._passes = passes
    wrapped._rest()
    count = weakref.WeakMethod(wrapped._count)
    hooks = [
        param.register_post_accumulate_grad_hook(_counting(count))
        for param in wrapped._parameter_names
        if param.requires_grad
    ]
    weakref.finalize(wrapped, lambda: [hook.remove() for hook in hooks])
    return wrapped


def _counting(count: weakref.WeakMethod[Callable[[torch.Tensor], None]]) -> Callable[[torch.Tensor], None]:
    """Return a hook without a reference to its optimizer."""

    def hook(param: torch.Tensor) -> None:
        found = count()
        if found is not None:
            found(param)

    return hook
