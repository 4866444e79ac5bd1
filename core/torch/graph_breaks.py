"""Compiled code calls this front end as Python would: no compiler looks inside.

A compiler that traced what these functions do would run them with fake tensors, and the runtime has nothing to do with
those. So a call breaks the graph, and what it calls is not compiled either: also where torch calls by itself, as
it does hooks. The marks are on functions and on their code; calls that go by the fast path do not meet them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

import torch

REASON = "it talks to the other ranks"


def leave_graphs(package: str) -> None:
    """Mark every function and method of a package's modules that are loaded."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            for function in _functions(module):
                mark(function)


def mark(function: Any) -> None:
    """Have compiled code call a function as Python would, and compile nothing that it calls."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = REASON
    skip = _skip()
    if skip is not None:
        for code in _codes(inspect.unwrap(function).__code__):
            skip(code)
        if inspect.isfunction(function):
            skip(function.__code__)


def _functions(module: ModuleType) -> Iterator[Any]:
    """Yield what a module defines, methods of its classes included."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            for member in list(vars(value).values()):
                plain = getattr(member, "__func__", getattr(member, "fget", member))
                if inspect.isfunction(plain):
                    yield plain
        elif inspect.isfunction(inspect.unwrap(value)):  # or the fast path before one
            yield value


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@functools.cache
def _skip() -> Callable[[CodeType], None] | None:
    """Return the mark by which torch's frame evaluation skips code and all that it calls; None in an older torch."""
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    action, strategy = getattr(frames, "_FrameAction", None), getattr(frames, "_FrameExecStrategy", None)
    if frames is None or action is None or strategy is None:
        return None
    leave = strategy(action.SKIP, action.SKIP)
    set_strategy: Callable[[CodeType, Any], None] = frames.set_code_exec_strategy
    return lambda code: set_strategy(code, leave)
