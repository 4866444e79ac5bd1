"""Forward, backward and optimizer of a model as ranges of the timeline, without a line in the training loop."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ringtune import session
from ringtune.errors import InvalidArgument

_OUTSIDE = (
    "ringtune.torch.trace records outside of compiled code: trace what torch.compile returns, not what it is given"
)


class TraceHandle:
    """What `trace` has put into a model and its optimizer; as a context manager it is removed at the end."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        # Begins of the running calls, None where nothing was recorded; a stack, since a model may call itself.
        self._forward: list[int | None] = []
        self._optimizer: int | None = None

    def __enter__(self) -> TraceHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Take the hooks out again; what has begun is not recorded any more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forward.clear()
        self._optimizer = None

    def _watch_model(self, model: torch.nn.Module) -> None:
        def before(module: torch.nn.Module, args: Any) -> None:
            self._forward.append(_moment())

        def after(module: torch.nn.Module, args: Any, output: Any) -> None:
            if self._forward:
                record_since("forward", self._forward.pop())
            if torch.is_grad_enabled():
                self._watch_backward(output)

        # The outermost hooks, which run also when forward raises, so that each begin has its end.
        first, last = (torch.compiler.disable(hook, reason=_OUTSIDE) for hook in (before, after))
        self._handles.append(model.register_forward_pre_hook(first, prepend=True))
        self._handles.append(model.register_forward_hook(last, always_call=True))

    def _watch_backward(self, output: Any) -> None:
        """Record the backward passes that come by this output: from its gradient to the end of the graph's task."""

        def begun(grad: torch.Tensor) -> None:
            if self._handles:
                _begin_backward(self)

        for tensor in _tensors(output):
            if tensor.grad_fn is not None:  # a leaf would keep the hook for ever
                tensor.register_hook(begun)

    def _watch_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        def before(*_: Any) -> None:
            self._optimizer = _moment()

        def after(*_: Any) -> None:
            began, self._optimizer = self._optimizer, None
            record_since("optimizer", began)

        first, last = (torch.compiler.disable(hook, reason=_OUTSIDE) for hook in (before, after))
        self._handles.append(optimizer.register_step_pre_hook(first))
        self._handles.append(optimizer.register_step_post_hook(last))


def trace(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> TraceHandle:
    """Record ``forward``, ``backward`` and ``optimizer`` of every step as ranges while a timeline is recorded.

    Args:
        model: The model as the training calls it: the module itself, DDP's wrapper, or what `torch.compile` returned
           X.
        optimizer: Its optimizer, wrapped by `DistributedOptimizer` or not.

    Returns:
        A handle; ``remove()``, or the end of ``with trace(...):``, takes the hooks out.

    Raises:
        InvalidArgument: One of the two is something else.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(
            f"trace() got a {type(model).__name__} as model; give the torch.nn.Module that is trained"
        )
    if not isinstance(optimizer, (torch.optim.Optimizer, type(None))):
        raise InvalidArgument(
            f"trace() got a {type(optimizer).__name__} as optimizer; give a torch.optim.Optimizer, or none"
        )
    handle = TraceHandle()
    handle._watch_model(model)
    if optimizer is not None:
        handle._watch_optimizer(optimizer)
    return handle


_backward: dict[int, dict[TraceHandle, int | None]] = {}
"""When the backward pass of each traced model began, by the number of the graph's task: in the order of beginning."""

_MOST_TASKS = 64
"""A pass that failed has no end and stays behind; numbers are never used again."""


def _begin_backward(handle: TraceHandle) -> None:
    task = torch._C._current_graph_task_id()
    if task not in _backward:
        _backward[task] = {}
        if len(_backward) > _MOST_TASKS:
            del _backward[next(iter(_backward))]
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: _end_backward(task))
    _backward[task].setdefault(handle, _moment())


def _end_backward(task: int) -> None:
    """All models' passes of one task end with it, the last to begin first: ranges nest."""
    for handle, began_ns in reversed(_backward.pop(task, {}).items()):
        if handle._handles:
            record_since("backward", began_ns)


def _moment() -> int | None:
    """The present time, if a timeline is being recorded."""
    now = session.state.current
    return time.monotonic_ns() if now is not None and now.recording else None


def record_since(name: str, began_ns: int | None) -> None:
    """Record a range that ends here, if a timeline is being recorded; None: its begin is not known."""
    now = session.state.current
    if began_ns is not None and now is not None and now.recording:
        now.record_range(name, began_ns, time.monotonic_ns())


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _tensors(one)]
    return []
