"""How one gradient reaches the runtime: as it lies in memory, compressed, with a flag, as rows, or as missing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringtune.common.process_sets import ProcessSet, global_process_set, number_of
from ringtune.errors import InvalidArgument
from ringtune.operations import Allreduce, GradientReport
from ringtune.session import require
from ringtune.torch import devices, handles, persistent
from ringtune.torch.arguments import Average
from ringtune.torch.asynchronous import collective_params
from ringtune.torch.compression import Chosen, Compression, FeedbackCompressor, to_travel, wire_number
from ringtune.torch.feedback import Feedback
from ringtune.torch.handles import Reduction
from ringtune.torch.slots import Slot, Standing
from ringtune.torch.uneven import Flags, gather_rows

_STEADY = 8
"""Steps with the same outcome after which a flagged gradient travels without its flag again."""


@dataclass(frozen=True)
class ReducerOptions:
    """How gradients are reduced.

    Attributes:
        reduction: Operation and factors.
        compression: How gradients travel.
        sparse_as_dense: Make sparse gradients dense before they travel.
        passes: Backward passes whose gradients are summed up before they travel.
        process_set: The ranks that take part.
    """

    reduction: Reduction
    compression: Chosen = Compression.none
    sparse_as_dense: bool = False
    passes: int = 1
    process_set: ProcessSet = global_process_set


class Submission:
    """Submits the gradients of one reducer.

    Args:
        options: How they are reduced.

    Attributes:
        wire: Number of the dtype that the runtime lets them travel as, -1 for their own.
        plain: Whether they travel as they lie in memory, the runtime's casts apart.
        feedback: State of a compressor with error feedback, if there is one.
    """

    def __init__(self, options: ReducerOptions) -> None:
        self.options = options
        self.wire = wire_number(options.compression, options.reduction.op)
        self.plain = options.compression is Compression.none or self.wire != -1
        self.feedback: Feedback | None = None
        # What a compressor with error feedback does not take travels as it is.
        remembers = isinstance(options.compression, FeedbackCompressor)
        self._compression: Chosen = Compression.none if remembers else options.compression
        self._flags = Flags(options.reduction.op)

    def attach(self, slots: list[Slot]) -> None:
        """Give a compressor with error feedback its parameters."""
        compression, options = self.options.compression, self.options
        if isinstance(compression, FeedbackCompressor):
            self.feedback = compression.attach(slots, options.reduction, options.process_set)

    def start(self, slot: Slot, grad: torch.Tensor | None, group: str, group_size: int) -> None:
        """Start a gradient that has changed since it was cached, that is no plain one, or that is missing."""
        if grad is not None and grad.requires_grad:
            raise InvalidArgument(
                f"the gradient of '{slot.name}' has a graph of its own (create_graph=True): it cannot be reduced; call "
                "torch.autograd.grad for the inner derivative and backward() without create_graph for the loss"
            )
        if self.feedback is not None:
            slot.sparse = self.feedback.start(slot.name, grad)
            if slot.sparse is not None:
                return
        if slot.standing is Standing.ROWS:
            slot.sparse = gather_rows(slot, grad, self.options.reduction.op, self.options.process_set)
        elif slot.standing is Standing.FLAGGED and not self._goes_as_rows(grad):
            self._start_flagged(slot, grad, group, group_size)
        elif grad is None or self._goes_as_rows(grad):
            self._report_none(slot, grad, group, group_size)
        else:
            self._start_dense(slot, grad, group, group_size)

    def _goes_as_rows(self, grad: torch.Tensor | None) -> bool:
        as_dense = self.options.sparse_as_dense or self.feedback is not None
        return grad is not None and grad.is_sparse and not as_dense

    def _report_none(self, slot: Slot, grad: torch.Tensor | None, group: str, group_size: int) -> None:
        """Report that there is no dense gradient; the ranks that report the same agree about it."""
        reduction = self.options.reduction
        number = handles.DTYPES.get(slot.param.dtype, handles.DTYPES[torch.float32])
        sparse, where = grad is not None, reduction.process_set
        report = GradientReport(slot.wire, sparse, number, *reduction[:3], group, group_size, where, self.wire)
        slot.ticket = require().submit(report)
        if grad is not None:
            slot.finish = lambda deliver: Standing.ROWS

    def _start_dense(self, slot: Slot, grad: torch.Tensor, group: str, group_size: int) -> None:
        dense = grad.to_dense() if grad.is_sparse else grad
        travelling = to_travel(dense, self._compression, self.options.reduction.op)
        small = travelling.tensor.contiguous()
        self._submit(slot, small, group, group_size)
        if small is grad:
            if group_size == 0 and self.plain:
                alike = collective_params(grad, self.options.reduction._replace(wire=self.wire))
                persistent.remember(persistent.Call("", slot.key, [grad]), [slot.wire], [alike])
            if grad.is_cpu:
                return
        ticket = slot.ticket

        def finish(deliver: bool) -> None:
            devices.join(ticket, small)
            if deliver and small is not grad:
                _put(slot, grad, travelling.decompress(small))

        slot.finish = finish

    def _start_flagged(self, slot: Slot, grad: torch.Tensor | None, group: str, group_size: int) -> None:
        """Start a gradient that some ranks may not have: neutral elements instead of it, and a flag behind them."""
        dense = self._flags.neutral(slot.param) if grad is None else grad.to_dense() if grad.is_sparse else grad
        travelling = to_travel(dense, self._compression, self.options.reduction.op)
        shape, small = travelling.tensor.shape, self._flags.attach(travelling.tensor, grad is not None)
        self._submit(slot, small, group, group_size)
        ticket, size = slot.ticket, self.options.process_set.size() or 1

        def finish(deliver: bool) -> Standing | None:
            devices.join(ticket, small)
            some, all_of_them = self._flags.read(small, size)
            if deliver and some:
                _put(slot, grad, travelling.decompress(small[:-1].view(shape)))
            return self._steady(slot, some, all_of_them)

        slot.finish = finish

    @staticmethod
    def _steady(slot: Slot, some: bool, all_of_them: bool) -> Standing | None:
        """Take the flag away after some steps in which all ranks had the gradient, or none."""
        if some and not all_of_them:
            slot.streak = 0
            return None
        slot.streak = max(slot.streak, 0) + 1 if some else min(slot.streak, 0) - 1
        if abs(slot.streak) < _STEADY:
            return None
        if not some:
            return Standing.UNUSED
        slot.standing, slot.streak = Standing.EXPECTED, 0
        return None

    def _submit(self, slot: Slot, tensor: torch.Tensor, group: str, group_size: int) -> None:
        reduction = self.options.reduction
        address = tensor.data_ptr()
        operation = Allreduce(
            slot.wire, address, address, tuple(tensor.shape), handles.dtype_number(tensor), *reduction[:3],
            group, group_size, reduction.process_set, self.wire, devices.device_of(tensor),
        )  # fmt: skip
        slot.ticket = require().submit(operation)
        slot.kept = tensor.untyped_storage()


def _put(slot: Slot, grad: torch.Tensor | None, result: torch.Tensor) -> None:
    """Bring a result into the gradient that was submitted, if there is one."""
    with torch.no_grad():
        if grad is None:
            slot.param.grad = result.clone()
        elif grad.is_sparse:
            slot.param.grad = result.to_sparse()
        else:
            grad.copy_(result)


def reduction_of(op: int, predivide: float, process_set: ProcessSet) -> Reduction:
    """Return the reduction of a gradient; a predivided average divides before and multiplies back after."""
    divides = op == Average and predivide != 1.0
    before, after = (1.0 / predivide, predivide) if divides else (1.0, 1.0)
    return Reduction(op, before, after, number_of(process_set))
