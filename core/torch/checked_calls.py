"""The checks of what is given to the public functions on tensors: the rules of `COMMON`, and those of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from ringtune.common import argument_checks
from ringtune.common.argument_checks import COMMON, Check, check_each, refuse
from ringtune.errors import InvalidArgument
from ringtune.torch import handles
from ringtune.torch.memory_check import check_target, is_traced

_Function = TypeVar("_Function", bound=Callable[..., Any])


def check_input(value: Any, what: str) -> None:
    """Refuse what cannot travel."""
    handles.dtype_number(value, what)


def check_in_place(value: Any, what: str) -> None:
    """Refuse what no result can be written into."""
    handles.dtype_number(value, what)
    check_target(value, what)


def check_reduced_input(value: Any, what: str) -> None:
    """Refuse what cannot be reduced."""
    handles.dtype_number(value, what, reduces=True)


def check_reduced_in_place(value: Any, what: str) -> None:
    """Refuse what cannot be reduced in place."""
    handles.dtype_number(value, what, reduces=True)
    check_target(value, what)


def check_out(value: Any, what: str) -> None:
    """Refuse what no result can be written into; None: a new tensor is made."""
    if value is not None:
        check_in_place(value, what)


def check_sparse(value: Any, what: str) -> None:
    """Refuse what is no sparse COO tensor."""
    if not isinstance(value, torch.Tensor):
        refuse(what, value, "a sparse COO tensor (tensor.to_sparse())")
    if is_traced(value) or value.layout is not torch.sparse_coo:
        raise InvalidArgument(f"{what} is of layout {value.layout}, expected a sparse COO tensor (tensor.to_sparse())")


def check_compression(value: Any, what: str) -> None:
    """Refuse what is no compressor."""
    if not callable(getattr(value, "compress", None)) or not callable(getattr(value, "decompress", None)):
        refuse(what, value, "hvd.Compression.none, .fp16, .bf16, or a class with compress and decompress")


_CHECKS: Mapping[str, Check] = {**COMMON, "out": check_out, "compression": check_compression}
_BY_FORM: Mapping[tuple[bool, bool], Check] = {
    (False, False): check_input,
    (False, True): check_in_place,
    (True, False): check_reduced_input,
    (True, True): check_reduced_in_place,
}
"""The check of a tensor, by whether it is reduced and whether that is done in place."""


def checked(function: _Function) -> _Function:
    """Put the checks of all arguments before a collective; one whose name ends in an underscore writes its tensors."""
    return checked_with()(function)


def checked_with(**own: Check) -> Callable[[_Function], _Function]:
    """Do the same with other rules for some arguments."""

    def decorate(function: _Function) -> _Function:
        check = _BY_FORM["reduce" in function.__name__, function.__name__.endswith("_")]
        tensors = {"tensor": check, "tensors": check_each(check)}
        return argument_checks.checked(function, {**_CHECKS, **tensors, **own})

    return decorate
