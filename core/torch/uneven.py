"""Gradients that not every rank has: flags beside them, one tensor that asks for many, and rows of sparse ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ringtune.common.process_sets import ProcessSet
from ringtune.session import require
from ringtune.torch import handles
from ringtune.torch.arguments import Average, Max, Min, Product, Sum
from ringtune.torch.asynchronous import sparse_allreduce_async
from ringtune.torch.slots import Slot, Standing

if TYPE_CHECKING:
    from ringtune.torch.handles import Reduction

_NEUTRAL = {Min: float("inf"), Max: float("-inf"), Product: 1.0}
"""What a rank without a gradient contributes; 0 for the other operations."""


class Flags:
    """Says beside a tensor whether this rank has it, in one more element that the same operation reduces.

    Args:
        op: The operation.
    """

    def __init__(self, op: int) -> None:
        self._op = op
        self._has, self._has_not = (0.0, 1.0) if op in (Min, Product) else (1.0, 0.0)

    def neutral(self, param: torch.Tensor) -> torch.Tensor:
        """Return neutral elements in the shape of a parameter."""
        return torch.full(param.shape, _NEUTRAL.get(self._op, 0.0), dtype=param.dtype, device=param.device)

    def attach(self, tensor: torch.Tensor, has: bool) -> torch.Tensor:
        """Return the elements of a tensor and the flag, in new memory."""
        flag = tensor.new_full((1,), self._has if has else self._has_not)
        return torch.cat([tensor.detach().reshape(-1), flag])

    def read(self, reduced: torch.Tensor, size: int) -> tuple[bool, bool]:
        """Return whether some rank had the tensor, and whether all of `size` ranks are known to."""
        value = float(reduced[-1])
        if self._op in (Min, Product):
            return value < 0.5, False
        most = {Average: 1.0, Sum: float(size)}.get(self._op)
        return value > 0, most is not None and value > most * (1 - 0.5 / size)


class Unused:
    """One small tensor a step that asks for all gradients that no rank had lately.

    Args:
        name: Name of the tensor.
        reduction: How the gradients are reduced: it can travel with them.
        wire: Number of the dtype that they travel as, -1 for their own.
        process_set: The ranks that take part.
    """

    def __init__(self, name: str, reduction: Reduction, wire: int, process_set: ProcessSet) -> None:
        op = reduction.op if reduction.op in (Average, Sum) else Max
        self._reduction = reduction._replace(op=op, prescale=1.0, postscale=1.0, wire=wire)
        self._flags, self._process_set = Flags(op), process_set
        self._name = handles.wire_name("allreduce", name, reduction.process_set)
        self._asked: tuple[list[Slot], int, list[Any]] | None = None

    def ask(self, slots: Sequence[Slot]) -> None:
        """Tell the other ranks which of these gradients this rank has."""
        has = torch.tensor([0.0 if slot.take() is None else 1.0 for slot in slots])
        ticket, kept = handles.start_allreduce(has, has, self._name, self._reduction)
        self._asked = list(slots), ticket, kept

    def answer(self) -> list[tuple[Slot, Standing]]:
        """Wait for the answer; return the gradients that some rank has, and how they are to be submitted.

        Raises:
            RuntimeFailure: The question failed.
        """
        if self._asked is None:
            return []
        (slots, ticket, kept), self._asked = self._asked, None
        session = require()
        try:
            session.wait(ticket)
        finally:
            session.release(ticket)
        woken = []
        size = self._process_set.size() or 1
        for index, slot in enumerate(slots):
            some, all_of_them = self._flags.read(kept[1][index : index + 1], size)
            if some:
                woken.append((slot, Standing.EXPECTED if all_of_them else Standing.FLAGGED))
        return woken


_DENSE_ROW = -1
"""Index of an empty row by which a rank says that its gradient is dense."""


def gather_rows(
    slot: Slot, grad: torch.Tensor | None, op: int, process_set: ProcessSet
) -> Callable[[], torch.Tensor | None]:
    """Gather the rows of a gradient that is sparse on some rank.

    Args:
        slot: The parameter.
        grad: This rank's gradient; None without one.
        op: The operation: ``Average`` divides by the number of ranks, others sum up.
        process_set: The ranks that take part.

    Returns:
        A function that waits and returns the gradient of all ranks: dense if it is dense on a rank, as in one process;
        None when no rank has a row.
    """
    param = slot.param
    mine = _as_rows(param, grad)
    wait = sparse_allreduce_async(mine, slot.unique, op, process_set)

    def rows() -> torch.Tensor | None:
        found = wait()
        indices, values = found._indices(), found._values()
        dense = bool((indices[0] == _DENSE_ROW).any())
        if dense:
            real = indices[0] != _DENSE_ROW
            indices, values = indices[:, real], values[real]
        if indices.shape[1] == 0 and not dense:
            return None
        result = torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)
        return result.to_dense() if dense else result

    return rows


def _as_rows(param: torch.Tensor, grad: torch.Tensor | None) -> torch.Tensor:
    """Return a gradient as a sparse tensor with one sparse dimension, which the ranks can join."""
    if grad is not None and grad.is_sparse:
        return grad if grad.sparse_dim() == 1 else grad.to_dense().to_sparse(1)
    shape = (0, *param.shape[1:])
    indices = torch.zeros((1, 0), dtype=torch.int64, device=param.device)
    values = torch.zeros(shape, dtype=param.dtype, device=param.device)
    if grad is not None:
        rows = grad.detach().to_sparse(1)
        indices = torch.cat([indices.new_full((1, 1), _DENSE_ROW), rows._indices()], 1)
        values = torch.cat([values.new_zeros((1, *param.shape[1:])), rows._values()])
    return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)
