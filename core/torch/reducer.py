"""Reducing gradients while backward still runs: one slot per parameter, submitted from its gradient's hook.

The path from hook to runtime is kept short on purpose: it runs once per parameter and step, on the thread that
computes the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from ringtune import native
from ringtune.common.process_sets import ProcessSet, global_process_set, number_of
from ringtune.errors import InvalidArgument, RingtuneError
from ringtune.session import require, state
from ringtune.torch import devices, handles, quick
from ringtune.torch.arguments import Average
from ringtune.torch.asynchronous import reduction_how, sparse_allreduce_async
from ringtune.torch.compression import Chosen, Compression, FeedbackCompressor, to_travel, wire_number
from ringtune.torch.handles import Reduction

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
"""Horovod's words."""

_submit_alike = quick.submit_alike  # once per gradient: without a look into the module


@dataclass(frozen=True)
class ReducerOptions:
    """How gradients are reduced.

    Attributes:
        how: Operation and factors.
        compression: How gradients travel.
        sparse_as_dense: Make sparse gradients dense before they travel.
        passes: Backward passes whose gradients are summed up before they travel.
        process_set: The ranks that take part.
    """

    how: Reduction
    compression: Chosen = Compression.none
    sparse_as_dense: bool = False
    passes: int = 1
    process_set: ProcessSet = global_process_set


class Slot:
    """One parameter: what is known beforehand, and its reduction under way.

    Attributes:
        param: The parameter.
        name: Its name.
        wire: Name on the wire.
        shape: Shape of the parameter and its gradient.
        dtype: dtype the gradient travels in when it is dense and not compressed.
        delay: Backward passes still to come before the gradient travels.
        ticket: Ticket of the reduction, 0 when none is under way.
        group: The group it belongs to, if any.
        grad: The gradient whose memory the runtime uses.
        finish: Brings the result into place, None when the gradient was reduced in place.
        sparse: Waits for the reduction of a gradient that is sparse, or compressed with a memory, and returns it.
        key: Stands for the gradient and how it is reduced (`quick.submit_alike`).
    """

    __slots__ = (
        "delay",
        "dtype",
        "finish",
        "grad",
        "group",
        "key",
        "name",
        "number",
        "param",
        "shape",
        "sparse",
        "ticket",
        "wire",
    )

    def __init__(self, param: torch.Tensor, name: str, how: Reduction, passes: int) -> None:
        self.param = param
        self.name = name
        self.wire = handles.wire_name("allreduce", name, how.process_set)
        self.shape = tuple(param.shape)
        self.dtype = param.dtype
        self.number = handles.DTYPES.get(param.dtype, -1)
        self.delay = passes
        self.ticket = 0
        self.group: Group | None = None
        self.grad: Any = None
        self.finish: Callable[[], None] | None = None
        self.sparse: Callable[[], torch.Tensor] | None = None
        self.key = ""

    @property
    def busy(self) -> bool:
        """Whether a reduction is under way."""
        return self.ticket != 0 or self.sparse is not None


class Group:
    """Parameters that travel together, when the last of them is ready."""

    def __init__(self, name: str, slots: Sequence[Slot]) -> None:
        self.name = name
        self.slots = list(slots)
        self.ready = 0
        for slot in slots:
            slot.group = self


class Reducer:
    """Reduces the gradients of a list of parameters.

    Args:
        named: Name and parameter, in the same order on all ranks.
        groups: Lists of parameters that travel together.
        options: How gradients are reduced.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        groups: Sequence[Sequence[torch.Tensor]],
        options: ReducerOptions,
    ) -> None:
        self.options = options
        self.passes = options.passes
        process_set = options.how.process_set
        self.slots = [Slot(param, name, options.how, options.passes) for name, param in named]
        by_param = {slot.param: slot for slot in self.slots}
        self.groups = [
            Group(handles.wire_name("allreduce", f"group.{index}", process_set), [by_param[param] for param in members])
            for index, members in enumerate(groups)
        ]
        self._wire = wire_number(options.compression, options.how.op)
        self.feedback = None
        if isinstance(options.compression, FeedbackCompressor):
            self.feedback = options.compression.attach(self.slots, options.how, options.process_set)
        self._plain = options.compression is Compression.none or self._wire != -1
        for slot in self.slots:
            slot.key = f"{slot.wire} {options.how} {self._wire}"
            slot.param.register_post_accumulate_grad_hook(self._hook(slot))

    @property
    def busy(self) -> bool:
        """Whether a reduction is under way."""
        return any(slot.busy for slot in self.slots)

    def set_passes(self, passes: int) -> None:
        """Change how many backward passes are summed up."""
        self.passes = passes
        self.rest()

    def rest(self) -> None:
        """Begin counting passes anew."""
        for slot in self.slots:
            slot.delay = self.passes
        for group in self.groups:
            group.ready = 0
        if self.feedback is not None:
            self.feedback.rest()

    def finish(self) -> None:
        """Start what backward did not reach (with zeros where there is no gradient), then wait for everything.

        Raises:
            RuntimeFailure: A reduction failed; nothing is under way any more.
        """
        for slot in self.slots:
            if not slot.busy and (slot.group is None or slot.delay > 0):
                if slot.param.grad is None:
                    slot.param.grad = torch.zeros_like(slot.param)
                slot.delay = 0
                self._ready(slot)
        failure = self.drain()
        if failure is not None:
            raise failure
        if self.feedback is not None:
            self.feedback.step_done()

    def drain(self) -> RingtuneError | None:
        """Wait for what is under way and return the first failure."""
        failure: RingtuneError | None = None
        session = require()
        for slot in self.slots:
            try:
                if slot.ticket:
                    session.wait(slot.ticket)
                    if slot.finish is not None:
                        slot.finish()
                elif slot.sparse is not None:
                    slot.param.grad = slot.sparse()
            except RingtuneError as error:
                failure = failure or error
            if slot.ticket:
                session.release(slot.ticket)
            slot.ticket, slot.grad, slot.finish, slot.sparse = 0, None, None, None
        self.rest()
        return failure

    def _hook(self, slot: Slot) -> Callable[[torch.Tensor], None]:
        """Return the function that autograd calls when the parameter's gradient has been added up."""

        def hook(param: torch.Tensor) -> None:
            slot.delay -= 1
            if slot.delay > 0:
                return
            if slot.delay < 0:
                raise AssertionError(TOO_MANY_PASSES)
            if slot.group is None:
                self._start(slot, "", 0)
            else:
                self._ready(slot)

        return hook

    def _ready(self, slot: Slot) -> None:
        group = slot.group
        if group is None:
            self._start(slot, "", 0)
            return
        group.ready += 1
        if group.ready == len(group.slots):
            for member in group.slots:
                self._start(member, group.name, len(group.slots))

    def _start(self, slot: Slot, group: str, group_size: int) -> None:
        grad = slot.param.grad
        session = state.current
        if session is None:
            session = require()
        try:
            if grad is not None and self._plain and group_size == 0:
                slot.ticket = _submit_alike(slot.key, grad)
                if slot.ticket:
                    slot.grad = grad
                    return
            if self._is_plain(grad, slot):
                self._submit(slot, grad, (group, group_size), session.runtime)
            else:
                self._start_slowly(slot, group, group_size)
        except native.error_class() as error:
            raise native.translate(error) from None

    def _is_plain(self, grad: torch.Tensor | None, slot: Slot) -> TypeGuard[torch.Tensor]:
        """Return whether a gradient travels as it lies in memory."""
        if grad is None or grad.dtype is not slot.dtype or not self._plain or grad.is_sparse or not grad.is_cpu:
            return False
        return grad.is_contiguous()

    def _submit(self, slot: Slot, grad: torch.Tensor, group: tuple[str, int], runtime: Any) -> None:
        how = self.options.how
        address = grad.data_ptr()
        slot.ticket = runtime.allreduce(
            slot.wire,
            address,
            address,
            slot.shape,
            slot.number,
            how.op,
            how.prescale,
            how.postscale,
            *group,
            how.process_set,
            self._wire,
        )
        slot.grad = grad
        if group[1] == 0:
            alike = reduction_how(grad, how._replace(wire=self._wire))
            quick.remember_alike(slot.key, grad, slot.wire, alike)

    def _start_slowly(self, slot: Slot, group: str, group_size: int) -> None:
        """Start a gradient that is sparse, compressed, not contiguous or of an unusual dtype."""
        grad = slot.param.grad
        assert grad is not None and not grad.requires_grad, "a gradient with a graph (create_graph) cannot be reduced"
        compression = self.options.compression
        if self.feedback is not None:
            if not grad.is_cpu:
                raise InvalidArgument(
                    f"gradient '{slot.name}' is on {grad.device}: PowerSGD and top-k compress gradients on the "
                    "CPU only; use Compression.bf16, fp16 or none"
                )
            slot.sparse = self.feedback.start(slot.name, grad)
            if slot.sparse is not None:
                return
            # Members of the group are compressed and do not travel as such.
            compression, group, group_size = Compression.none, "", 0
        if grad.is_sparse and not self.options.sparse_as_dense:
            slot.sparse = sparse_allreduce_async(grad, slot.name, self.options.how.op, self.options.process_set)
            return
        dense = grad.to_dense() if grad.is_sparse else grad
        travelling = to_travel(dense, compression, self.options.how.op)
        small = travelling.tensor.contiguous()
        number = handles.dtype_number(small)
        how = self.options.how
        slot.ticket = require().runtime.allreduce(
            slot.wire, small.data_ptr(), small.data_ptr(), slot.shape, number, how.op, how.prescale, how.postscale,
            group, group_size, how.process_set, travelling.wire, *devices.place_of(small),
        )  # fmt: skip
        ticket = slot.ticket
        slot.grad = (grad, small)

        def finish() -> None:
            devices.join(ticket, small)
            result = travelling.decompress(small)
            if grad.is_sparse:
                slot.param.grad = result.to_sparse()
            elif result is not grad:
                with torch.no_grad():
                    grad.copy_(result)

        slot.finish = finish


def reduction_of(op: int, predivide: float, process_set: ProcessSet) -> Reduction:
    """Return the reduction of a gradient; a predivided average divides before and multiplies back after."""
    divides = op == Average and predivide != 1.0
    before, after = (1.0 / predivide, predivide) if divides else (1.0, 1.0)
    return Reduction(op, before, after, number_of(process_set))
