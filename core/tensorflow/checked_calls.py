"""The checks of what is given to the public functions on tensors: the rules of `COMMON`, and those of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from ringtune.common import argument_checks
from ringtune.common.argument_checks import COMMON, Check, check_each, check_splits, refuse
from ringtune.common.compression import check_compression
from ringtune.common.dtypes import NUMBERS, check_reduced
from ringtune.errors import InvalidArgument

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _check_moved(value: Any, what: str) -> None:
    """Refuse what does not travel; what no tensor can be made of, TensorFlow refuses itself."""
    if isinstance(value, (str, bytes)):
        refuse(what, value, "a tensor")
    dtype = getattr(value, "dtype", None)
    name = "" if dtype is None else tf.as_dtype(dtype).name
    if name and name not in NUMBERS:
        raise InvalidArgument(f"{what}: dtype {name} does not travel; cast it to one of {', '.join(NUMBERS)}")


def _check_reduced(value: Any, what: str) -> None:
    """Refuse what is not reduced."""
    _check_moved(value, what)
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        check_reduced(tf.as_dtype(dtype).name, what)


def _check_splits(value: Any, what: str) -> None:
    """Refuse lists that hold what is no number of rows; of tensors, whose values may not be known yet, the op does."""
    if not hasattr(value, "dtype"):
        check_splits(value, what)


_CHECKS: Mapping[str, Check] = {
    **COMMON,
    "compression": check_compression,
    "tensor": _check_moved,
    "tensors": check_each(_check_moved),
    "variables": check_each(_check_moved),
    "splits": _check_splits,
}
_REDUCES = {**_CHECKS, "tensor": _check_reduced, "tensors": check_each(_check_reduced)}


def checked(function: _Function) -> _Function:
    """Put the checks of all arguments before a collective."""
    reduces = "reduce" in function.__name__
    return not_converted(argument_checks.checked(function, _REDUCES if reduces else _CHECKS))


def not_converted(function: _Function) -> _Function:
    """Let AutoGraph, which makes graph code of what a traced function calls, leave a function of ours as it is."""
    result: _Function = tf.autograph.experimental.do_not_convert(function)
    return result
