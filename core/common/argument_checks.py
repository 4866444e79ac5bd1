"""Checks of what a caller gives to a collective, in words that name the function and the argument.

The tensors of a framework are checked by its front end, which adds its own rules to `COMMON`.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ringtune.common.process_sets import ProcessSet
from ringtune.errors import InvalidArgument

_Function = TypeVar("_Function", bound=Callable[..., Any])

Check = Callable[[Any, str], object]
"""Takes a value and its description, such as ``"allreduce: name"``; raises `InvalidArgument` for a wrong one."""

_MOST_OFFSETS = 1 << 24
_OPERATIONS = "Average (0), Sum (1), Adasum (2), Min (3), Max (4), Product (5)"


def refuse(what: str, value: Any, expected: str) -> None:
    """Raise for a value that is not what was expected.

    Raises:
        InvalidArgument: Always.
    """
    shown = repr(value) if isinstance(value, (bool, int, float, str, bytes, type(None))) else ""
    shown = f"={shown}" if 0 < len(shown) <= 80 else ""
    raise InvalidArgument(f"{what}{shown} is {_article(type(value).__name__)}, expected {expected}")


def check_name(value: Any, what: str) -> None:
    """Refuse names that cannot travel: the other ranks read them as UTF-8."""
    if value is None:
        return
    if not isinstance(value, str):
        refuse(what, value, "a string, or None to have the calls counted")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what}={value!r} cannot be written as UTF-8 (character {error.start} is a lone surrogate): use other "
            "characters"
        ) from None


def check_op(value: Any, what: str) -> None:
    """Refuse what is no number of an operation."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(what, value, f"one of {_OPERATIONS}")
    if not 0 <= value <= 5:
        raise InvalidArgument(f"{what}={value}: expected one of {_OPERATIONS}")


def check_flag(value: Any, what: str) -> None:
    """Refuse what is no truth value and not None."""
    if value is not None and not isinstance(value, int) and not type(value).__name__.startswith("bool"):
        refuse(what, value, "True, False or None")


def check_factor(value: Any, what: str) -> None:
    """Refuse what is no real number."""
    if isinstance(value, (str, bytes)):
        refuse(what, value, "a number")
    try:
        float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        refuse(what, value, "a number")


def check_index(value: Any, what: str) -> None:
    """Refuse what is no whole number."""
    try:
        operator.index(value)
    except (TypeError, RuntimeError):
        refuse(what, value, "a whole number")


def check_handle(value: Any, what: str) -> None:
    """Refuse what is no handle of an asynchronous call."""
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(what, value, "the handle that an asynchronous call has returned")


def check_process_set(value: Any, what: str) -> None:
    """Refuse what is no process set; whether it is registered is checked where its number is asked for."""
    if not isinstance(value, ProcessSet):
        refuse(what, value, "a ProcessSet, such as hvd.global_process_set or what add_process_set returns")


def check_splits(value: Any, what: str) -> None:
    """Refuse splits that are no list of whole numbers from 0 on."""
    if value is None:
        return
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        refuse(what, value, "a list of whole numbers, one for each rank")
    for index, one in enumerate(value):
        check_index(one, f"{what}[{index}]")
        if not 0 <= operator.index(one) < 1 << 62:
            raise InvalidArgument(f"{what}[{index}]={one}: a number of rows is from 0 on")


def check_each(check: Check) -> Check:
    """Return the check of a list of which each member is checked."""

    def check_all(values: Any, what: str) -> None:
        single = isinstance(values, (str, bytes, Mapping)) or hasattr(values, "dtype")
        if single or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
            refuse(what, values, "a list or tuple of them")
        for index, one in enumerate(values):
            check(one, f"{what}[{index}]")

    return check_all


COMMON: Mapping[str, Check] = {
    "name": check_name,
    "op": check_op,
    "average": check_flag,
    "prescale_factor": check_factor,
    "postscale_factor": check_factor,
    "root_rank": check_index,
    "process_set": check_process_set,
    "splits": check_splits,
    "handle": check_handle,
}
"""By the names that arguments have everywhere."""


def checked(function: _Function, checks: Mapping[str, Check]) -> _Function:
    """Return the function with its arguments checked first.

    Args:
        function: Called when all checks pass. Python itself refuses a wrong number of arguments.
        checks: By name of the argument.
    """
    names = list(inspect.signature(function).parameters)
    title = function.__name__
    by_position = [(checks.get(name), f"{title}: {name}") for name in names]
    by_name = {name: (check, what) for name, (check, what) in zip(names, by_position, strict=True) if check is not None}

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for value, (check, what) in zip(args, by_position, strict=False):
            if check is not None:
                check(value, what)
        for name, value in options.items():
            if name in by_name:
                found, what = by_name[name]
                found(value, what)
        return function(*args, **options)

    result: Any = call
    return result  # type: ignore[no-any-return]


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether two elements share memory, by shape and strides in elements (or bytes, each as large as one)."""
    spans = sorted((abs(stride), size) for size, stride in zip(shape, strides, strict=True) if size != 1)
    if math.prod(shape) == 0:
        return False
    reach, nested = 0, True
    for stride, size in spans:
        nested = nested and stride > reach
        reach += stride * (size - 1)
    if nested:
        return False
    if math.prod(shape) > min(reach + 1, _MOST_OFFSETS):  # an exact answer for so many odd strides would take too long
        return True
    offsets = np.zeros(1, dtype=np.int64)
    for stride, size in spans:
        offsets = np.unique((offsets[:, None] + stride * np.arange(size)).ravel())
    return offsets.size < math.prod(shape)


def _article(noun: str) -> str:
    return "None" if noun == "NoneType" else f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
