"""Horovod's rules for `op`, `average` and factors, under the name where the front end looks for them."""

from __future__ import annotations

from ringtune.common.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    check_adasum,
    make_reduction,
    resolve_op,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "check_adasum",
    "handle_average_backwards_compatibility",
    "make_reduction",
    "resolve_op",
]


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the operation asked for; Horovod's name and order of arguments.

    Raises:
        InvalidArgument: See `resolve_op`.
    """
    return resolve_op(average, op)
