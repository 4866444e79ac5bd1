"""Arguments that all collectives share: Horovod's rules for `op`, `average` and factors."""

from __future__ import annotations

import warnings

from ringtune.common.process_sets import ProcessSet, require_global
from ringtune.errors import InvalidArgument, NotSupported
from ringtune.torch.handles import Reduction

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


def resolve_op(average: bool | None, op: int | None) -> int:
    """Return the operation asked for by Horovod's old and new argument.

    Raises:
        InvalidArgument: Both were given, or the number is no operation.
        NotSupported: Adasum.
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
    if op == Adasum:
        raise NotSupported("op=Adasum is not built in this version; use Average or Sum")
    return op


def reduction(average: bool | None, op: int | None, factors: tuple[float, float], process_set: ProcessSet) -> Reduction:
    """Return how to combine, from the arguments of an allreduce.

    Raises:
        InvalidArgument: See `resolve_op`.
        NotSupported: Adasum, or another set than that of all ranks.
    """
    require_global(process_set)
    return Reduction(resolve_op(average, op), float(factors[0]), float(factors[1]))
