"""Arguments that all collectives share: Horovod's rules for `op`, `average` and factors."""

from __future__ import annotations

import warnings
from typing import NamedTuple

from ringtune import session
from ringtune.common.process_sets import ProcessSet, global_process_set, number_of
from ringtune.errors import InvalidArgument, NotSupported

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


class Reduction(NamedTuple):
    """A reduction: operation number, factors before and after, and the ranks that take part.

    ``wire`` is the number of the dtype that floating tensors travel as; -1: their own.
    """

    op: int
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0
    wire: int = -1


def resolve_op(average: bool | None, op: int | None) -> int:
    """Return the operation asked for by Horovod's old and new argument.

    Raises:
        InvalidArgument: Both were given, or the number is no operation.
    """
    if op is not None and average is not None:
        raise InvalidArgument("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        warnings.warn("Parameter `average` has been replaced with `op` and is deprecated.", DeprecationWarning, 3)
        return Average if average else Sum
    if op is None:
        return Average
    if not isinstance(op, int) or not 0 <= op < len(_NAMES):
        raise InvalidArgument(f"op={op!r}: expected one of {', '.join(f'{n} ({i})' for i, n in enumerate(_NAMES))}")
    return op


def check_adasum(process_set: ProcessSet) -> None:
    """Refuse Adasum where it is not defined.

    Raises:
        NotSupported: Another set than that of all ranks, or a number of ranks that is no power of two.
    """
    if process_set is not global_process_set:
        raise NotSupported("Adasum does not support non-global process sets yet.")
    if session.require().size.bit_count() != 1:
        raise NotSupported("Running Adasum with non-power of 2 ranks is not supported yet.")


def make_reduction(
    average: bool | None, op: int | None, factors: tuple[float, float], process_set: ProcessSet, wire: int = -1
) -> Reduction:
    """Return the reduction that the arguments of an allreduce describe.

    Raises:
        InvalidArgument: See `resolve_op`.
        NotSupported: See `check_adasum`.
        TypeError: The set is not registered.
    """
    resolved = resolve_op(average, op)
    if resolved == Adasum:
        check_adasum(process_set)
    return Reduction(resolved, float(factors[0]), float(factors[1]), number_of(process_set), wire)
