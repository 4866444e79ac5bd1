"""Forward, backward and optimizer of a model as ranges of the timeline, without a line in the training loop."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ringtune import session


class TraceHandle:
    """What `trace` has put into a model and its optimizer."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._began: dict[str, int] = {}

    def remove(self) -> None:
        """Take the hooks out again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _begin(self, name: str) -> None:
        now = session.state.current
        if now is not None and now.recording:
            self._began[name] = time.monotonic_ns()

    def _end(self, name: str) -> None:
        began = self._began.pop(name, None)
        now = session.state.current
        if began is not None and now is not None and now.recording:
            now.runtime.record_range(name, began, time.monotonic_ns())

    def _watch_backward(self, output: Any) -> None:
        """Record the backward pass that starts at this output: from its gradient to the end of the graph's task."""
        tensor = next((one for one in _tensors(output) if one.requires_grad), None)
        if tensor is None:
            return

        def begun(grad: torch.Tensor) -> None:
            if "backward" not in self._began:
                self._begin("backward")
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(lambda: self._end("backward"))

        tensor.register_hook(begun)


def trace(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> TraceHandle:
    """Record ``forward``, ``backward`` and ``optimizer`` of every step as ranges while a timeline is recorded.

    Args:
        model: The model; DDP's wrapper or the module itself.
        optimizer: Its optimizer, wrapped by `DistributedOptimizer` or not.

    Returns:
        A handle; ``remove()`` takes the hooks out.
    """
    handle = TraceHandle()

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        handle._end("forward")
        if torch.is_grad_enabled():
            handle._watch_backward(output)

    handle._handles.append(model.register_forward_pre_hook(lambda module, args: handle._begin("forward")))
    handle._handles.append(model.register_forward_hook(after))
    if optimizer is not None:
        handle._handles.append(optimizer.register_step_pre_hook(lambda *_: handle._begin("optimizer")))
        handle._handles.append(optimizer.register_step_post_hook(lambda *_: handle._end("optimizer")))
    return handle


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _tensors(one)]
    return []
