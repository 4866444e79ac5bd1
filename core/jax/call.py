"""What a collective in a program of JAX asks for: the primitive's parameter, and the text that the handler reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringtune.common.call_plan import ALLGATHER, REDUCESCATTER, plan_text
from ringtune.common.reductions import Average, Sum

KINDS = ("allreduce", "allgather", "broadcast", "barrier", "alltoall", "reducescatter")


@dataclass(frozen=True)
class Call:
    """Collectives of one kind on the leaves of a tree, which are submitted together.

    Attributes:
        kind: Number of the kind.
        names: On the wire, one for each leaf.
        members: Size of the process set and this rank's place in it, when the program is traced.
        rank: This rank in the job.
        op: Reduction.
        root: Global rank of a broadcast's root.
        process_set: Number of the set.
        wire: Number of the dtype that floating leaves travel as; -1: their own.
        ends_step: A step of the training ends when it is done.
        factors: Before and after the reduction.
        rows: Allgather: rows of each result, where ranks have unequally many; empty: equally many.
    """

    kind: int
    names: tuple[str, ...]
    members: tuple[int, int]
    rank: int
    op: int = Sum
    root: int = 0
    process_set: int = 0
    wire: int = -1
    ends_step: bool = False
    factors: tuple[float, float] = (1.0, 1.0)
    rows: tuple[int, ...] = ()

    def text(self) -> str:
        """Return the call as ``native/frameworks/call_plan.h`` reads it."""
        return plan_text(
            self.kind, self.names, op=self.op, root=self.root, process_set=self.process_set, wire=self.wire,
            ends_step=self.ends_step, factors=self.factors,
        )  # fmt: skip

    def of(self, indices: Sequence[int], ending: str) -> Call:
        """Return the same call on some of the leaves, under names of its own; it ends no step."""
        names = tuple(self.names[index] + ending for index in indices)
        rows = tuple(self.rows[index] for index in indices) if self.rows else ()
        return replace(self, names=names, rows=rows, ends_step=False)

    def result_shape(self, shape: Sequence[int], index: int) -> tuple[int, ...]:
        """Return the shape of a leaf's result.

        Args:
            shape: Of the leaf.
            index: Of the leaf.
        """
        size, rank = self.members
        if self.kind == ALLGATHER:
            return (self.rows[index] if self.rows else shape[0] * size, *shape[1:])
        if self.kind == REDUCESCATTER:
            return (shape[0] // size + (1 if rank < shape[0] % size else 0), *shape[1:])
        return tuple(shape)


def gradient_factor(call: Call) -> float:
    """Return by what a reducescatter's gradient is multiplied before it is gathered."""
    before, after = call.factors
    return before * after / (call.members[0] if call.op == Average else 1)
