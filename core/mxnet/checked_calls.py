"""The checks of what is given to the public functions: the rules of `COMMON`, and those of MXNet's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ringtune.common import argument_checks
from ringtune.common.argument_checks import COMMON, check_each, check_index, check_splits
from ringtune.common.compression import check_compression
from ringtune.mxnet.library import check_array, check_reduced_array

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _check_splits(value: Any, what: str) -> None:
    """Take an array of MXNet too."""
    check_splits(value.asnumpy() if hasattr(value, "asnumpy") else value, what)


_MOVES = {
    **COMMON,
    "priority": check_index,
    "compression": check_compression,
    "splits": _check_splits,
    "tensor": check_array,
    "tensors": check_each(check_array),
}
_REDUCES = {**_MOVES, "tensor": check_reduced_array, "tensors": check_each(check_reduced_array)}


def checked(function: _Function) -> _Function:
    """Put the checks of all arguments before a collective."""
    return argument_checks.checked(function, _REDUCES if "reduce" in function.__name__ else _MOVES)
