"""The checks of what is given to the public functions: the rules of `COMMON`, and those of JAX. Leaves: see `trees`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from ringtune.common import argument_checks
from ringtune.common.argument_checks import COMMON, Check, refuse
from ringtune.jax.compression import check_compression

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _static(check: Check) -> Check:
    """Return the check of what must be known when a program is traced."""

    def check_static(value: Any, what: str) -> None:
        parts = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        if any(isinstance(part, jax.core.Tracer) for part in parts):
            refuse(what, value, "a value that is known when the program is traced, no traced one")
        check(value, what)

    return check_static


def check_list(value: Any, what: str) -> None:
    """Refuse what is no list of trees."""
    if not isinstance(value, (list, tuple)):
        refuse(what, value, "a list or tuple of arrays or pytrees")


_CHECKS = {
    **{name: _static(check) for name, check in COMMON.items()},
    "compression": check_compression,
    "tensors": check_list,
}


def checked(function: _Function) -> _Function:
    """Put the checks of all arguments before a collective."""
    return argument_checks.checked(function, _CHECKS)
