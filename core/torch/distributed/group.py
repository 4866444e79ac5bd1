"""`torch.distributed`'s process group on ringtune's runtime, for tensors in the CPU's memory and on GPUs.

Every group but the world has a session of its own, so groups run beside one another. Operations of a group are
matched by their order, as torch demands; the runtime knows them by name. Names repeat (kind, size and a number modulo a
few), so that a training loop looks the same to it in every step: that is what its cache and its plan live on. An
operation whose name is still under way waits for the earlier one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringtune.errors import InvalidArgument, NotSupported
from ringtune.operations import Allreduce, Broadcast
from ringtune.session import Session
from ringtune.torch import devices
from ringtune.torch.arguments import Average, Max, Min, Product, Sum
from ringtune.torch.distributed.blocking import may_block
from ringtune.torch.distributed.exchanges import Exchange, PartReduction, deal, joined, rows, take_row
from ringtune.torch.distributed.members import Meeting, Pair, open_group
from ringtune.torch.distributed.works import Delivery, Several, Work, copy, then
from ringtune.torch.handles import dtype_number
from ringtune.torch.steps import communicated

_RedOp: Any = dist.ReduceOp
_OPS = {_RedOp.SUM: Sum, _RedOp.AVG: Average, _RedOp.MIN: Min, _RedOp.MAX: Max, _RedOp.PRODUCT: Product}
_NAMES_IN_TURN = 4
WORLD = "world"
"""Name of the group of all ranks."""

Tensors = Sequence[torch.Tensor]

# torch's stubs name the arguments otherwise in each version; it calls them by position.
_Base: Any = dist.ProcessGroup


class ProcessGroupRingtune(_Base):  # type: ignore[misc]
    """A group of ranks. Made by ``init_process_group("ringtune")`` and ``new_group``.

    Args:
        session: Session of exactly these ranks.
        meeting: Where its ranks meet, for sends.
        name: Name of the group.
        timeout: How long an operation may take before `Work.wait` raises.

    Attributes:
        serves: Kinds of devices that the group was asked to serve.
    """

    serves: tuple[str, ...] = ("cpu", "cuda")

    def __init__(self, session: Session, meeting: Meeting, name: str, timeout: timedelta) -> None:
        super().__init__(session.rank, session.size)
        self._session = session
        self._meeting = meeting
        self._name = name
        self._registered_name = name
        self._timeout = timeout
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._under_way: dict[str, Work] = {}
        self._pairs: dict[int, Pair] = {}

    # -- what torch asks ---------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name under which the backend is registered."""
        return "ringtune"

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return the name under which torch has registered the group."""
        return self._registered_name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Take the name under which torch registers the group."""
        self._registered_name = name

    _set_group_name = setGroupName
    group_name = property(getGroupName)

    def name(self) -> str:
        """Return the name under which the backend is registered."""
        return "ringtune"

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._session.rank

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return self._session.size

    @property
    def session(self) -> Session:
        """The session underneath; the world's is the one of `ringtune.session.state`."""
        return self._session

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.serves]

    def shutdown(self) -> None:
        """Leave the group."""
        for pair in self._pairs.values():
            pair.close()
        self._pairs.clear()
        if self._name != WORLD or self._meeting.owns_session:
            self._session.close()

    def abort(self) -> None:
        """Leave the group."""
        self.shutdown()

    # -- collectives -------------------------------------------------------------------------------------------------

    @may_block
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce each tensor in place."""
        return self._reduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce each tensor in place."""
        return self._reduce(tensors, opts)

    @may_block
    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce in place on the root; the others' tensors stay as they are."""
        here = self.rank() == opts.rootRank
        return self._reduce(tensors if here else [tensor.clone() for tensor in tensors], opts)

    @may_block
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:
        """Overwrite each tensor with the root's."""
        root = 0 if opts is None else opts.rootRank
        return self._broadcast(tensors, root)

    @may_block
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Give every rank the tensors of all."""
        return self._gather(inputs, [list(row) for row in outputs])

    @may_block
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Concatenate the ranks' tensors."""
        return self._gather([input], [list(rows(output, self.size()))], whole=[output])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Concatenate the ranks' tensors, for several tensors."""
        return self._gather(inputs, [list(rows(output, self.size())) for output in outputs], whole=list(outputs))

    @may_block
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Give the root the tensors of all."""
        here = self.rank() == opts.rootRank
        counts = [inputs[0].numel() if here else 0] * self.size()
        sizes = [inputs[0].numel() if rank == opts.rootRank else 0 for rank in range(self.size())]
        received = inputs[0].new_empty(sum(counts))
        places = list(outputs[0]) if here else []
        work = self._exchange(received, inputs[0].detach().contiguous().view(-1), counts, sizes)
        return then(work, places, lambda: deal(received, places))

    @may_block
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        """Give each rank its tensor of the root's list."""
        each = outputs[0].numel()
        here = self.rank() == opts.rootRank
        sent = joined(inputs[0]) if here else outputs[0].new_empty(0)
        received = outputs[0].new_empty(each)
        counts = [each if rank == opts.rootRank else 0 for rank in range(self.size())]
        work = self._exchange(received, sent, counts, [each if here else 0] * self.size())
        return then(work, list(outputs), lambda: deal(received, outputs))

    @may_block
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        """Reduce lists of tensors and keep this rank's; the tensors of a list may differ in size."""
        flat = [joined(row) for row in inputs]
        if all(tensor.numel() == row[0].numel() for row in inputs for tensor in row):
            return self._reduce_rows(outputs, flat, opts)
        # The runtime cuts evenly: lists of another kind are reduced as a whole.
        own = self.rank()
        begins = [sum(tensor.numel() for tensor in row[:own]) for row in inputs]

        def finish() -> None:
            for output, whole, begin in zip(outputs, flat, begins, strict=True):
                copy(output, whole[begin : begin + output.numel()].view(output.shape))

        return then(self._reduce(flat, opts), list(outputs), finish)

    @may_block
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Reduce and keep this rank's part of the first dimension."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Reduce and keep this rank's part of the first dimension, for several tensors."""
        for output, input in zip(outputs, inputs, strict=True):
            if input.numel() != output.numel() * self.size():
                raise InvalidArgument(
                    f"reduce_scatter: input of {input.numel()} elements, expected {self.size()} times the output's "
                    f"{output.numel()}"
                )
        return self._reduce_rows(outputs, [input.detach().contiguous().view(-1) for input in inputs], opts)

    @may_block
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Send tensor i to rank i and receive one from each."""
        sizes = [tensor.numel() for tensor in inputs]
        counts = [tensor.numel() for tensor in outputs]
        received = inputs[0].new_empty(sum(counts))
        work = self._exchange(received, joined(inputs), counts, sizes)
        return then(work, list(outputs), lambda: deal(received, outputs))

    @may_block
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Work:
        """Send rows to all ranks and receive rows from all; without splits equally many."""
        row_in = math.prod(input.shape[1:])
        row_out = math.prod(output.shape[1:])
        size = self.size()
        to = [rows * row_in for rows in (input_splits or [input.shape[0] // size] * size)]
        back = [rows * row_out for rows in (output_splits or [output.shape[0] // size] * size)]
        if sum(to) > input.numel() or sum(back) > output.numel():
            raise InvalidArgument(f"all_to_all: splits {input_splits}, {output_splits} are larger than the tensors")
        received = output if output.is_contiguous() else torch.empty_like(output, memory_format=torch.contiguous_format)
        work = self._exchange(received.view(-1), input.contiguous().view(-1), back, to)
        return then(work, [output], None if received is output else lambda: copy(output, received))

    @may_block
    def barrier(self, opts: Any = None) -> Work:
        """Wait until all ranks have come here."""
        return self._submit("barrier", [], lambda name: self._session.submit_barrier(name))

    # torch's names before 2.13
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- point to point ----------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        """Send a tensor to a rank of the group."""
        source = tensors[0].contiguous()
        return self._point_to_point(source, None, dst, tag)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank of the group."""
        target = tensors[0] if tensors[0].is_contiguous() else torch.empty_like(tensors[0]).contiguous()
        return self._point_to_point(target, tensors[0], src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Refuse: every receive names its sender.

        Raises:
            NotSupported: Always.
        """
        raise NotSupported("recv without a source is not supported by ringtune: name the sending rank")

    def _point_to_point(self, tensor: torch.Tensor, output: torch.Tensor | None, peer: int, tag: int) -> Work:
        if not 0 <= peer < self.size() or peer == self.rank():
            raise InvalidArgument(f"rank {self.rank()} cannot send to or receive from rank {peer} of {self.size()}")
        with self._lock:
            pair = self._pairs.get(peer)
            if pair is None:
                pair = self._pairs[peer] = self._open_pair(peer)
        work = Delivery([tensor] if output is None else [output], tensor, output)
        pair.start(tensor, tag, output is None, work.submitted)
        return work

    def _open_pair(self, peer: int) -> Pair:
        low, high = sorted((self.rank(), peer))
        index = 0 if self.rank() == low else 1
        name = f"{self._name}.pair.{low}.{high}"
        return Pair(lambda: open_group(self._meeting, name, index, 2), index == 0)

    # -- how operations reach the runtime ----------------------------------------------------------------------------

    def _reduce(self, tensors: Tensors, opts: Any) -> Work:
        op = _op_of(opts)
        works = [self._reduce_one(tensor, op) for tensor in tensors]
        return works[0] if len(works) == 1 else Several(works, list(tensors))

    def _reduce_one(self, tensor: torch.Tensor, op: int) -> Work:
        if tensor.is_complex():
            if op not in (Sum, Average):
                raise InvalidArgument("complex tensors can be summed and averaged only")
            return then(self._reduce_one(torch.view_as_real(tensor), op), [tensor], None)
        number = dtype_number(tensor)
        flat = tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous()
        shape = tuple(flat.shape)
        address = flat.data_ptr()

        def submit(name: str) -> int:
            place = devices.place_of(flat)
            return self._session.submit_allreduce(Allreduce(name, address, address, shape, number, op, place=place))

        finish = None if flat.data_ptr() == tensor.data_ptr() else lambda: copy(tensor, flat)
        return self._submit(f"allreduce.{number}.{op}.{tensor.numel()}", [tensor], submit, finish, flat)

    def _reduce_rows(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        """Reduce flat tensors of as many equal parts as there are ranks; each rank keeps its part."""
        op = _op_of(opts)
        works = [self._reduce_rows_one(output, flat, op) for output, flat in zip(outputs, inputs, strict=True)]
        return works[0] if len(works) == 1 else Several(works, list(outputs))

    def _reduce_rows_one(self, output: torch.Tensor, flat: torch.Tensor, op: int) -> Work:
        reduction = PartReduction(self._session, output, flat, op)
        base = f"reducescatter.{reduction.dtype}.{op}.{flat.numel()}"
        return self._submit(base, [output], reduction.submit, reduction.finish, reduction.memory)

    def _broadcast(self, tensors: Tensors, root: int) -> Work:
        works = [self._broadcast_one(tensor, root) for tensor in tensors]
        return works[0] if len(works) == 1 else Several(works, list(tensors))

    def _broadcast_one(self, tensor: torch.Tensor, root: int) -> Work:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        number = dtype_number(real)
        flat = real.detach() if real.is_contiguous() else real.detach().contiguous()
        address, shape = flat.data_ptr(), tuple(flat.shape)

        def submit(name: str) -> int:
            place = devices.place_of(flat)
            return self._session.submit_broadcast(Broadcast(name, address, address, shape, number, root, place=place))

        finish = None if flat.data_ptr() == real.data_ptr() else lambda: copy(real, flat)
        return self._submit(f"broadcast.{number}.{root}.{flat.numel()}", [tensor], submit, finish, flat)

    def _gather(
        self, inputs: Tensors, outputs: Sequence[list[torch.Tensor]] | None, whole: list[torch.Tensor] | None = None
    ) -> Work:
        """Gather each input; `outputs` are this rank's places by input and rank, None where it wants none."""
        places = [None] * len(inputs) if outputs is None else outputs
        works = [self._gather_one(tensor, place) for tensor, place in zip(inputs, places, strict=True)]
        shown = whole if whole is not None else [one for row in outputs or [] for one in row]
        return then(works[0], shown, None) if len(works) == 1 else Several(works, shown)

    def _gather_one(self, tensor: torch.Tensor, outputs: list[torch.Tensor] | None) -> Work:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        number, tickets = dtype_number(real), list[int]()
        flat = real.detach().contiguous().view(-1)

        def submit(name: str) -> int:
            where = (tuple(flat.shape), number, 0, *devices.place_of(flat))
            tickets.append(self._session.submit_allgather(name, flat.data_ptr(), *where))
            return tickets[0]

        def finish() -> None:
            came = take_row(self._session, tickets[0], flat).view(tensor.dtype)
            if outputs is not None and came.numel():
                deal(came, outputs)

        return self._submit(f"allgather.{number}.{flat.numel()}", [], submit, finish, flat)

    def _exchange(
        self, received: torch.Tensor, sent: torch.Tensor, counts: Sequence[int], sizes: Sequence[int]
    ) -> Work:
        """Exchange parts of flat tensors: `sizes` elements to each rank, `counts` from each."""
        exchange = Exchange(self._session, received, sent, counts, sizes)
        return self._submit("alltoall", [received], exchange.submit, exchange.finish, exchange)

    def _submit(
        self, base: str, outputs: list[torch.Tensor], submit: Any, finish: Any = None, keep: Any = None
    ) -> Work:
        communicated()
        with self._lock:
            count = self._counts.get(base, 0)
            self._counts[base] = count + 1
            name = f"{base}.{count % _NAMES_IN_TURN}"
            earlier = self._under_way.get(name)
            if earlier is not None and not earlier._done:
                earlier.settle()
            work = Work(self._session, [submit(name)], outputs, finish, keep)
            self._under_way[name] = work
        return work


def _op_of(opts: Any) -> int:
    if opts is None:
        return Sum
    kind = opts.reduceOp
    for red_op, number in _OPS.items():
        if kind == red_op:
            return number
    raise NotSupported(f"{kind}: ringtune reduces with SUM, AVG, MIN, MAX and PRODUCT")
