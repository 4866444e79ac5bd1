"""Phases of a step that the script does not name: forward, backward, optimizer, and the wait for the data loader."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ringtune.torch.recorder import buckets
from ringtune.torch.recorder.replacing import Replaced
from ringtune.torch.tracing import TraceHandle, record_since

_LOOKED_AT_STEPS = 3
"""Steps in which models are looked for: hooks on all modules cost some microseconds each."""

_traced: weakref.WeakKeyDictionary[torch.nn.Module, TraceHandle] = weakref.WeakKeyDictionary()
_running = threading.local()  # .depth: modules whose forward runs on this thread
_global_hooks: list[Any] = []
_steps = 0
_optimizer_began_ns = 0


def watch() -> list[Any]:
    """Record the phases of every model, optimizer and data loader, until what is returned is removed."""
    global _steps
    from torch.utils.data import dataloader

    _steps = 0
    _global_hooks.append(modules.register_module_forward_pre_hook(_before))
    _global_hooks.append(modules.register_module_forward_hook(_after, always_call=True))
    return [
        _Models(),
        register_optimizer_step_pre_hook(_before_step),
        register_optimizer_step_post_hook(_after_step),
        Replaced(dataloader._BaseDataLoaderIter, "__next__", _loading),
    ]


class _Models:
    """The hooks in models, and those that look for models."""

    def remove(self) -> None:
        _look_no_more()
        for handle in _traced.values():
            handle.remove()
        _traced.clear()


def _before(module: torch.nn.Module, arguments: Any) -> None:
    if torch.compiler.is_compiling():
        return
    depth = getattr(_running, "depth", 0)
    _running.depth = depth + 1
    if type(module).__name__ == "OptimizedModule":
        _look_no_more()  # before the compiler looks at them
    if depth == 0 and module not in _traced and next(module.parameters(), None) is not None:
        buckets.watch(module)
        handle = _traced[module] = TraceHandle()
        handle._watch_model(module)


def _after(module: torch.nn.Module, arguments: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        _running.depth = max(0, getattr(_running, "depth", 0) - 1)


def _look_no_more() -> None:
    while _global_hooks:
        _global_hooks.pop().remove()


def _before_step(*_: Any) -> None:
    global _optimizer_began_ns
    _optimizer_began_ns = time.monotonic_ns()


def _after_step(*_: Any) -> None:
    global _steps
    _steps += 1
    if _steps == _LOOKED_AT_STEPS:
        _look_no_more()
    record_since("optimizer", _optimizer_began_ns)


def _loading(original: Any) -> Any:
    """Return the data loader's ``__next__`` that records how long a batch takes."""

    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        began_ns = time.monotonic_ns()
        try:
            return original(self)
        finally:
            record_since("data loading", began_ns)

    return next_batch
