"""Persistent collectives (MPI-4's word): what was called once starts again without Python. And the pending handles.

A function that has started a collective makes it persistent by `remember`, the one entry. A later call like it (same
name and arguments, a tensor of the same shape and dtype) goes to the runtime without a frame of Python: the decorators
here put that fast path before a function, which handles all other calls; the hook of a gradient calls `start`.
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
from ringtune.runtime import Runtime
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
    """Parameters of a persistent collective, as the runtime's numbers.

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


class Call(NamedTuple):
    """By what the next call like this one is known.

    Attributes:
        family: As given to the decorator; empty: it is started by its name with `start`.
        name: As the caller gave it, None for a function that takes none.
        tensors: What it was called with; none for a barrier.
        given: The arguments as the caller wrote them, by position (those of name and tensors do not matter).
    """

    family: str
    name: str | None
    tensors: Sequence[torch.Tensor]
    given: tuple[Any, ...] = ()


def remember(
    call: Call,
    wires: Sequence[str],
    params: Sequence[CollectiveParams],
    result_factory: ResultFactory | None = None,
    *,
    group: str = "",
) -> None:
    """Make a collective persistent, or a group of allreduces in place: the next call like this one starts it.

    Args:
        call: How it was called.
        wires: Name on the wire; of a group, of each tensor.
        params: Parameters of it, or of each.
        result_factory: Makes the results; none where the tensor is the result.
        group: Name of the group on the wire.
    """
    runtime = _runtime()
    if runtime is None or (params[0].kind == Kind.ALLREDUCE and params[0].op == _ADASUM):
        return
    if not call.family:
        _path.cache_persistent(call.name, call.tensors[0], runtime, wires[0], params[0])
    elif group:
        _path.cache_group(_signatures[call.family], call.name, call.tensors, runtime, wires, params, call.given, group)
    else:
        tensor, words = call.tensors[0] if call.tensors else None, (wires[0], params[0], call.given)
        _path.cache_call(_signatures[call.family], call.name, tensor, runtime, words, result_factory)


def _runtime() -> Runtime | None:
    """Return the runtime that starts them; None without a fast path, and where a test has replaced the runtime."""
    now = Session.current()
    if _path is None or now is None:
        return None
    runtime = now.lend_runtime()
    return runtime if isinstance(runtime, _RUNTIME) else None


def _not_known(name: str, tensor: torch.Tensor) -> int:
    del name, tensor
    return 0


start: Callable[[str, torch.Tensor], int] = _not_known if _path is None else _path.submit_persistent
"""Starts an allreduce in place by its name: its ticket, 0 when the tensor is not like the one remembered. Raises as the
runtime does."""


def settle(tickets: list[int], tensors: list[torch.Tensor]) -> Sequence[int]:
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
    """Forget persistent collectives and pending handles."""
    if _path is None:
        pending.clear()
    else:
        _path.clear()


def _like(function: _Function, quick: Any) -> _Function:
    functools.update_wrapper(quick, function)
    result: _Function = quick
    return result
