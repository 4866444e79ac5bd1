"""What compiled code and engines of frameworks ask the native runtime for, as it reads it."""

from __future__ import annotations

from collections.abc import Sequence

from ringtune.common.reductions import Sum

ALLREDUCE, ALLGATHER, BROADCAST, BARRIER, ALLTOALL, REDUCESCATTER = range(6)
"""Numbers of ``native/collective/kind.h``."""


def plan_text(
    kind: int,
    names: Sequence[str],
    *,
    op: int = Sum,
    root: int = 0,
    process_set: int = 0,
    wire: int = -1,
    ends_step: bool = False,
    factors: tuple[float, float] = (1.0, 1.0),
) -> str:
    """Return collectives of one kind as ``native/frameworks/call_plan.h`` reads them.

    Args:
        kind: Number of the kind.
        names: On the wire, one for each tensor.
        op: Reduction.
        root: Global rank of a broadcast's root.
        process_set: Number of the set.
        wire: Number of the dtype that floating tensors travel as; -1: their own.
        ends_step: A step of the training ends when it is done.
        factors: Before and after the reduction.
    """
    head = " ".join([*map(str, (kind, op, root, process_set, wire, int(ends_step))), *map(repr, factors)])
    return "\n".join([head, *(name.replace("\n", " ") for name in names)])
