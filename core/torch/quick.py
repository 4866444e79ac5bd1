"""The short path of calls that repeat themselves, and what is under way.

An allreduce in place that was called alike before (same name and arguments, a tensor of the same shape and dtype)
goes to the runtime without a frame of Python: the decorators here put that path before a function, which takes whatever
is unusual. It needs a torch whose tensors can be looked at from C (``__dlpack_c_exchange_api__``, torch 2.10); with an
older one the functions stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from ringtune import native
from ringtune.common.process_sets import global_process_set
from ringtune.session import WAIT_SLICE_NS, Session

_Function = TypeVar("_Function", bound=Callable[..., Any])

_ADASUM = 2  # of ringtune.torch.arguments, which builds on this module
_DEFAULTS = (None, 1.0, 1.0, global_process_set)


def make_path() -> Any:
    """Return a short path for torch's tensors, None where torch is too old for one."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        return None
    types = (torch.Tensor, torch.nn.Parameter)
    return native.load().ShortPath(exchange, types, _DEFAULTS, WAIT_SLICE_NS)


_path = make_path()
_RUNTIME: type = native.load().Runtime

pending: dict[int, Any] = {} if _path is None else _path.pending
"""What belongs to each handle; a tensor that is reduced in place by the short path stands for itself."""


def blocking(function: _Function) -> _Function:
    """Put the short path before an allreduce in place that waits."""
    return function if _path is None else _like(function, _path.now(function))


def submitting(function: _Function) -> _Function:
    """Put the short path before an allreduce in place that returns a handle."""
    return function if _path is None else _like(function, _path.submit(function))


def submitting_group(function: _Function) -> _Function:
    """Put the short path before a group of allreduces in place that returns a handle."""
    return function if _path is None else _like(function, _path.submit_group(function))


def waiting(function: _Function) -> _Function:
    """Put the short path before the function that waits for a handle."""
    return function if _path is None else _like(function, _path.synchronize(function))


def remember(tensor: torch.Tensor, name: str | None, wire: str, words: tuple[Any, Any]) -> None:
    """Prepare the short path of the next call under this name.

    Args:
        tensor: What is reduced in place.
        name: As the caller gave it; calls without a name are never alike.
        wire: Name on the wire.
        words: Numbers for the runtime (dtype, operation, factors, process set, dtype to travel as); the arguments from
            ``op`` on as the caller wrote them.
    """
    now = Session.current()
    if _path is None or now is None or type(name) is not str or words[0][1] == _ADASUM:
        return
    if isinstance(now.runtime, _RUNTIME):  # tests put another in its place
        _path.remember(name, tensor, now.runtime, wire, words)


def remember_group(
    tensors: Sequence[torch.Tensor], name: str, wires: list[str], words: tuple[list[Any], Any], group: str
) -> None:
    """Prepare the short path of the next group under this name; `words` as for `remember`, with numbers by tensor.

    Args:
        tensors: What is reduced in place.
        name: As the caller gave it.
        wires: Names on the wire, by tensor.
        words: Numbers for the runtime by tensor; the arguments from ``op`` on as the caller wrote them.
        group: Name of the group on the wire.
    """
    now = Session.current()
    numbers, given = words
    if _path is None or now is None or type(name) is not str or numbers[0][1] == _ADASUM:
        return
    if isinstance(now.runtime, _RUNTIME):
        _path.remember_group(name, tensors, now.runtime, wires, numbers, given, group)


def remember_alike(key: str, tensor: torch.Tensor, wire: str, numbers: tuple[int, int, float, float, int, int]) -> None:
    """Prepare `submit_alike` of tensors like this one.

    Args:
        key: Stands for name and arguments of an allreduce in place.
        tensor: What was reduced under it.
        wire: Name on the wire.
        numbers: dtype, operation, factors, process set, dtype to travel as.
    """
    now = Session.current()
    if _path is not None and now is not None and numbers[1] != _ADASUM and isinstance(now.runtime, _RUNTIME):
        _path.remember_alike(key, tensor, now.runtime, wire, numbers)


def _none_alike(key: str, tensor: torch.Tensor) -> int:
    del key, tensor
    return 0


submit_alike: Callable[[str, torch.Tensor], int] = _none_alike if _path is None else _path.submit_alike
"""Submits a tensor under a key: its ticket, 0 when it is not like the one remembered. Raises as the runtime does."""


def reset() -> None:
    """Forget what was called, and what is under way."""
    if _path is None:
        pending.clear()
    else:
        _path.clear()


def _like(function: _Function, quick: Any) -> _Function:
    functools.update_wrapper(quick, function)
    result: _Function = quick
    return result
