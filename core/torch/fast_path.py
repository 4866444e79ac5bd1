"""The fast path of repeated calls, and the pending handles.

A collective that repeats an earlier call (same name and arguments, a tensor of the same shape and dtype) goes to the
runtime without a frame of Python: the decorators here put that path before a function, which handles all other calls.
It needs a torch whose tensors can be read from C (``__dlpack_c_exchange_api__``, torch 2.10); with an older one the
functions stay as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from ringtune import native
from ringtune.session import Session
from ringtune.tickets import WAIT_SLICE_NS

_Function = TypeVar("_Function", bound=Callable[..., Any])

_ADASUM = 2  # of ringtune.torch.arguments, which builds on this module


class Kind:
    """Numbers of ``native/collective/kind.h``."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    BARRIER = 3
    ALLTOALL = 4
    REDUCESCATTER = 5


NAMES = ("allreduce", "allgather", "broadcast", "barrier", "alltoall", "reducescatter")
"""Names of the kinds on the wire."""


class CollectiveParams(NamedTuple):
    """Parameters of a collective, as the runtime's numbers.

    Attributes:
        kind: Which collective (`Kind`).
        root: Rank that sends; of a broadcast.
        dtype: Of the elements.
        op: Operation.
        prescale: Factor before the reduction.
        postscale: Factor after it.
        process_set: The ranks that take part.
        wire: Number of the dtype that the tensor travels as, -1 for its own.
    """

    kind: int
    root: int
    dtype: int
    op: int = 1
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0
    wire: int = -1


class ResultFactory(NamedTuple):
    """Makes the results of a call that returns a new tensor.

    Attributes:
        function: Makes one.
        argument: What it is called with.
        gathers: The result is as large as the contributions of the ranks together.
        shape: Of the result.
    """

    function: Callable[[Any], torch.Tensor]
    argument: Any
    gathers: bool
    shape: tuple[int, ...]


PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Torch's own classes of tensors: a subclass may override operations."""


def make_path() -> Any:
    """Return a fast path for torch's tensors, None where they cannot be read from C."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        return None
    try:
        with torch.inference_mode(False):
            return native.load().FastPath(exchange, PLAIN, _examples(), WAIT_SLICE_NS)
    except native.error_class():
        return None


def _examples() -> list[tuple[Any, ...]]:
    """Return sample tensors with address and size of their storage; the first is plain."""
    tensors = torch.zeros(1031), torch._neg_view(torch.zeros(333)[5:]), torch.zeros(3, 77, dtype=torch.uint8).t()
    return [
        (one, one._cdata, torch._C._dispatch_keys(one).raw_repr(), *_memory(one.untyped_storage())) for one in tensors
    ]


def _memory(storage: Any) -> tuple[int, int, int]:
    return storage._cdata, storage.nbytes(), storage.data_ptr()


_path = make_path()
_RUNTIME: type = native.load().Runtime
_signatures: dict[str, Any] = {}
"""Call signatures by family: functions of one family have the same arguments with the same meaning."""

pending: dict[int, Any] = {} if _path is None else _path.pending
"""What belongs to each handle; a tensor that is reduced in place by the fast path stands for itself."""


def blocking(family: str) -> Callable[[_Function], _Function]:
    """Put the fast path before a collective that waits."""
    return _before(family, "now")


def submitting(family: str) -> Callable[[_Function], _Function]:
    """Put the fast path before an allreduce in place that returns a handle."""
    return _before(family, "submit")


def submitting_group(family: str) -> Callable[[_Function], _Function]:
    """Put the fast path before a group of allreduces in place that returns a handle."""
    return _before(family, "submit_group")


def waiting(function: _Function) -> _Function:
    """Put the fast path before the function that waits for a handle."""
    return function if _path is None else _like(function, _path.synchronize(function))


def settling(function: _Function) -> _Function:
    """Make a function return the result of a call that the fast path has begun and could not end.

    It is given the ticket of the finished operation, the tensor that was to be the result, whether that is of a gather,
    and whether the caller has given it.
    """
    if _path is not None:
        _path.set_settler(function)
    return function


def _before(family: str, way: str) -> Callable[[_Function], _Function]:
    def decorate(function: _Function) -> _Function:
        if _path is None:
            return function
        if family not in _signatures:
            parameters = inspect.signature(function).parameters
            defaults = tuple(None if one.default is one.empty else one.default for one in parameters.values())
            positional = sum(one.kind is not one.KEYWORD_ONLY for one in parameters.values())
            _signatures[family] = _path.form(tuple(parameters), defaults, positional)
        return _like(function, getattr(_path, way)(_signatures[family], function))

    return decorate


def takes(name: str | None, tensor: torch.Tensor) -> bool:
    """Return whether calls of this name with tensors like this one may be cached: others always take the slow path."""
    return _path is not None and type(name) is str and type(tensor) in PLAIN and tensor.is_cpu


def _runtime() -> Any:
    """Return the runtime that calls are cached for; None without a fast path, and where a test has replaced it."""
    now = Session.current()
    if _path is None or now is None:
        return None
    runtime = now.lend_runtime()
    return runtime if isinstance(runtime, _RUNTIME) else None


def _is_slow(params: CollectiveParams) -> bool:
    return params.kind == Kind.ALLREDUCE and params.op == _ADASUM


def cache_call(
    family: str,
    called: tuple[str | None, torch.Tensor | None],
    call: tuple[str, CollectiveParams, tuple[Any, ...]],
    result_factory: ResultFactory | None = None,
) -> None:
    """Prepare the fast path of the next call under this name.

    Args:
        family: As given to the decorator.
        called: The name as the caller gave it, None for a function that takes none; and the tensor, if there is one.
        call: Name on the wire; parameters; the arguments as the caller wrote them, by position (those of name and
            tensors do not matter).
        result_factory: Makes the results; none where the tensor is the result.
    """
    runtime = _runtime()
    if runtime is not None and not _is_slow(call[1]):
        _path.cache_call(_signatures[family], *called, runtime, call, result_factory)


def cache_group(
    family: str,
    called: tuple[str, Sequence[torch.Tensor]],
    call: tuple[list[str], list[CollectiveParams], tuple[Any, ...]],
    group: str,
) -> None:
    """Prepare the fast path of the next group under this name.

    Args:
        family: As given to the decorator.
        called: The name as the caller gave it, and what is reduced in place.
        call: Names on the wire and parameters, both by tensor; the arguments as the caller wrote them, by position.
        group: Name of the group on the wire.
    """
    runtime = _runtime()
    if runtime is not None and not _is_slow(call[1][0]):
        _path.cache_group(_signatures[family], *called, runtime, *call, group)


def cache_persistent(key: str, tensor: torch.Tensor, wire: str, params: CollectiveParams) -> None:
    """Prepare `submit_persistent` of tensors like this one.

    Args:
        key: Stands for name and arguments of an allreduce in place.
        tensor: What was reduced under it.
        wire: Name on the wire.
        params: Parameters of the reduction.
    """
    runtime = _runtime()
    if runtime is not None and not _is_slow(params):
        _path.cache_persistent(key, tensor, runtime, wire, params)


def _no_persistent(key: str, tensor: torch.Tensor) -> int:
    del key, tensor
    return 0


submit_persistent: Callable[[str, torch.Tensor], int] = _no_persistent if _path is None else _path.submit_persistent
"""Submits a tensor under a key: its ticket, 0 when it is not like the one remembered. Raises as the runtime does."""


def settle_persistent(tickets: list[int], tensors: list[torch.Tensor]) -> Sequence[int]:
    """Wait for allreduces in place and release those whose results are in the memory of their tensors.

    Args:
        tickets: Of the allreduces.
        tensors: What they reduce, in the same order.

    Returns:
        Positions of the others: they have failed, or the tensor has been given other memory meanwhile; or there is no
        fast path.
    """
    runtime = _runtime()
    if runtime is None:
        return range(len(tickets))
    try:
        left: list[int] = _path.settle_persistent(runtime, tickets, tensors)
    except native.error_class():  # of a session that is over
        return range(len(tickets))
    return left


def reset() -> None:
    """Forget cached calls and pending handles."""
    if _path is None:
        pending.clear()
    else:
        _path.clear()


def _like(function: _Function, quick: Any) -> _Function:
    functools.update_wrapper(quick, function)
    result: _Function = quick
    return result
