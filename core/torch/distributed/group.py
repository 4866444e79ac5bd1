"""`torch.distributed`'s process group on ringtune's runtime, for tensors in the CPU's memory and on GPUs.

Every group but the world has a session of its own, so groups run beside one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from ringtune.errors import InvalidArgument
from ringtune.operations import Barrier
from ringtune.session import Session
from ringtune.torch.distributed.blocking import may_block
from ringtune.torch.distributed.members import Meeting
from ringtune.torch.distributed.memory import contents, reduced, source, sources, target, targets
from ringtune.torch.distributed.messages import Messages
from ringtune.torch.distributed.redistribution import deal, joined, rows
from ringtune.torch.distributed.submitting import Submitting, Tensors
from ringtune.torch.distributed.traced import GroupLabel
from ringtune.torch.distributed.works import Work, copy, then
from ringtune.torch.memory_check import is_own

WORLD = "world"
"""Name of the group of all ranks."""


class ProcessGroupRingtune(Submitting):
    """A group of ranks. Made by ``init_process_group("ringtune")`` and ``new_group``.

    Args:
        session: Session of exactly these ranks.
        meeting: Where its ranks meet, for sends.
        name: Name of the group.
        timeout: How long an operation may wait for missing ranks.

    Attributes:
        serves: Kinds of devices that the group was asked to serve.
        store: torch's store of the group, if there is one.
    """

    serves: tuple[str, ...] = ("cpu", "cuda")
    store: Any = None
    # torch asks the backend of a device what it can do beside collectives.
    supports_splitting = supports_shrinking = supports_coalescing = supports_time_estimate = False

    def __init__(self, session: Session, meeting: Meeting, name: str, timeout: timedelta) -> None:
        super().__init__(session, name, timeout)
        self._meeting = meeting
        self._registered_name = name
        self._messages = Messages(meeting, name, session, self._timeout_ns)

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

    def _get_backend(self, device: torch.device) -> Any:
        """Return the backend of a device; torch has a backend within a group where ringtune is both."""
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return whether the backend has an allocator of its own."""
        return False

    def get_group_store(self) -> Any:
        """Return torch's store of the group."""
        return self.store

    def set_label(self, label: GroupLabel) -> None:
        """Take what the group is called in the timeline."""
        self._messages.label = label

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long operations to come may wait for missing ranks."""
        self._timeout, self._timeout_ns = timeout, max(1, int(timeout.total_seconds() * 1e9))
        self._messages.timeout_ns = self._timeout_ns

    def _set_sequence_number_for_group(self) -> None:
        """Begin to number collectives, which every group does from 0."""

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives have been started: equal on all ranks between two of them."""
        return self._submitted

    def shutdown(self) -> None:
        """Leave the group."""
        self._messages.close()
        self._under_way.clear()  # works refer to their group: the cycle must not wait for Python's garbage collector
        if self._name != WORLD or self._meeting.owns_session:
            self._session.close()

    def abort(self) -> None:
        """Leave the group."""
        self.shutdown()

    # -- collectives -------------------------------------------------------------------------------------------------

    @may_block
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce each tensor in place."""
        return self._reduce(reduced(tensors, "all_reduce"), opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce each tensor in place."""
        return self._reduce(reduced(tensors, "all_reduce_coalesced"), opts)

    @may_block
    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce in place on the root; the others' tensors stay as they are."""
        if self.rank() == opts.rootRank:
            return self._reduce(targets(tensors, "reduce"), opts)
        return self._reduce([tensor.detach().clone() for tensor in sources(tensors, "reduce")], opts)

    @may_block
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:
        """Overwrite each tensor with the root's."""
        root = 0 if opts is None else opts.rootRank
        checked = sources(tensors, "broadcast") if self.rank() == root else targets(tensors, "broadcast")
        return self._broadcast(checked, root)

    @may_block
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Give every rank the tensors of all."""
        checked = [targets(row, "all_gather") for row in outputs]
        return self._gather(sources(inputs, "all_gather"), checked)

    @may_block
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Give every rank the tensors of all; an output's index is its rank, then its input's."""
        return self.allgather([list(row) for row in zip(*outputs, strict=True)], inputs, opts)

    @may_block
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Concatenate the ranks' tensors."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Concatenate the ranks' tensors, for several tensors."""
        whole = targets(outputs, "all_gather_single")
        parts = [list(rows(output, self.size())) for output in whole]
        return self._gather(sources(inputs, "all_gather_single"), parts, whole=whole)

    @may_block
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Give the root the tensors of all."""
        here = self.rank() == opts.rootRank
        sent = contents(source(inputs[0], "gather")).detach().view(-1)
        counts = [sent.numel() if here else 0] * self.size()
        sizes = [sent.numel() if rank == opts.rootRank else 0 for rank in range(self.size())]
        received = sent.new_empty(sum(counts))
        checked = targets(outputs[0], "gather") if here else []
        work = self._alltoall(received, sent, counts, sizes)
        return then(work, checked, lambda: deal(received, checked))

    @may_block
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        """Give each rank its tensor of the root's list."""
        output = target(outputs[0], "scatter")
        each = output.numel()
        here = self.rank() == opts.rootRank
        received = output.new_empty(each)
        sent = joined(sources(inputs[0], "scatter")) if here else received[:0]
        counts = [each if rank == opts.rootRank else 0 for rank in range(self.size())]
        work = self._alltoall(received, sent, counts, [each if here else 0] * self.size())
        return then(work, [output], lambda: deal(received, [output]))

    @may_block
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        """Reduce lists of tensors and keep this rank's; the tensors of a list may differ in size."""
        outputs = targets(outputs, "reduce_scatter")
        flat = [joined(sources(row, "reduce_scatter")) for row in inputs]
        if all(tensor.numel() == row[0].numel() for row in inputs for tensor in row):
            return self._reduce_rows(outputs, flat, opts)
        # The runtime splits evenly: lists of unequal tensors are reduced as a whole.
        own = self.rank()
        begins = [sum(tensor.numel() for tensor in row[:own]) for row in inputs]

        def finish() -> None:
            for output, whole, begin in zip(outputs, flat, begins, strict=True):
                copy(output, whole[begin : begin + output.numel()].view(output.shape))

        return then(self._reduce(flat, opts), outputs, finish)

    @may_block
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Reduce and keep this rank's part of the first dimension."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Reduce and keep this rank's part of the first dimension, for several tensors."""
        outputs = targets(outputs, "reduce_scatter_single")
        inputs = sources(inputs, "reduce_scatter_single")
        for output, input in zip(outputs, inputs, strict=True):
            if input.numel() != output.numel() * self.size():
                raise InvalidArgument(
                    f"reduce_scatter: input of {input.numel()} elements, expected {self.size()} times the output's "
                    f"{output.numel()}"
                )
        return self._reduce_rows(outputs, [contents(input).detach().view(-1) for input in inputs], opts)

    @may_block
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Send tensor i to rank i and receive one from each."""
        checked = targets(outputs, "all_to_all")
        sizes = [tensor.numel() for tensor in inputs]
        counts = [tensor.numel() for tensor in checked]
        sent = joined(sources(inputs, "all_to_all"))
        received = sent.new_empty(sum(counts))
        work = self._alltoall(received, sent, counts, sizes)
        return then(work, checked, lambda: deal(received, checked))

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
        output, sent = target(output, "all_to_all_single"), contents(source(input, "all_to_all_single")).detach()
        row_in = math.prod(input.shape[1:])
        row_out = math.prod(output.shape[1:])
        size = self.size()
        to = [rows * row_in for rows in (input_splits or [input.shape[0] // size] * size)]
        back = [rows * row_out for rows in (output_splits or [output.shape[0] // size] * size)]
        if sum(to) > input.numel() or sum(back) > output.numel():
            raise InvalidArgument(f"all_to_all: splits {input_splits}, {output_splits} are larger than the tensors")
        received = output.detach() if is_own(output) else output.new_empty(output.shape)
        work = self._alltoall(received.view(-1), sent.view(-1), back, to)
        return then(work, [output], None if is_own(output) else lambda: copy(output, received))

    @may_block
    def barrier(self, opts: Any = None) -> Work:
        """Wait until all ranks have reached this point."""
        return self._submit("barrier", [], lambda name: self._session.submit(Barrier(name, 0, self._timeout_ns)))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have reached this point, at most so long.

        Raises:
            Timeout: It names all ranks that are missing, whatever `wait_all_ranks` says.
        """
        self.barrier().wait(timeout or self._timeout)

    # torch's names before 2.13
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- point to point ----------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        """Send a tensor to a rank of the group."""
        return self._messages.send(tensors[0], dst, tag)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank of the group."""
        return self._messages.receive(tensors[0], src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Receive a tensor from whichever rank of the group sends first."""
        return self._messages.receive_from_any(tensors[0], tag)
