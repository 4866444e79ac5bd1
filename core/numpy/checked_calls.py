"""The checks of what is given to the public functions on arrays: the rules of `COMMON`, and those of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ringtune.common import argument_checks
from ringtune.common.argument_checks import COMMON, check_each
from ringtune.numpy.arrays import number_of_dtype

_Function = TypeVar("_Function", bound=Callable[..., Any])


def check_array(value: Any, what: str) -> None:
    """Refuse what cannot travel."""
    number_of_dtype(value, what)


def check_reduced_array(value: Any, what: str) -> None:
    """Refuse what cannot be reduced."""
    number_of_dtype(value, what, reduces=True)


_MOVES = {**COMMON, "array": check_array, "arrays": check_each(check_array)}
_REDUCES = {**COMMON, "array": check_reduced_array, "arrays": check_each(check_reduced_array)}


def checked(function: _Function) -> _Function:
    """Put the checks of all arguments before a collective."""
    return argument_checks.checked(function, _REDUCES if "reduce" in function.__name__ else _MOVES)
