"""Operations of a process group that give the ranks different parts: alltoall and reduce-scatter.

Each holds the buffers that the runtime reads and writes; `submit` starts it under a name, `finish` moves the result to
where it belongs when its ticket is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringtune import operations
from ringtune.errors import InvalidArgument
from ringtune.session import Session
from ringtune.torch import devices
from ringtune.torch.distributed.works import copy
from ringtune.torch.handles import dtype_number
from ringtune.torch.memory_check import is_own


def take_row(session: Session, ticket: int, sent: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the bytes of a finished allgather or alltoall, where what was sent lies.

    Args:
        session: Whose runtime ran it.
        ticket: Of the operation.
        sent: This rank's contribution.
        dtype: As which it was submitted; that of ``sent`` if missing.
    """
    if not sent.is_cpu:
        return devices.deliver(ticket, dtype or sent.dtype, sent, session).view(-1).view(torch.uint8)
    shape, buffer = session.take_gathered(ticket)
    return torch.empty(0, dtype=torch.uint8) if 0 in shape else torch.frombuffer(buffer, dtype=torch.uint8)


class Alltoall:
    """Sends parts of a flat tensor to all ranks and receives theirs, as bytes: any dtype will do.

    Args:
        session: Session of the group.
        received: Flat tensor that takes the parts in order of ranks.
        sent: Flat contiguous tensor, the parts in order of ranks.
        counts: Elements expected from each rank.
        sizes: Elements for each rank.
    """

    def __init__(
        self,
        session: Session,
        received: torch.Tensor,
        sent: torch.Tensor,
        counts: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        self._session = session
        self._received = received
        self._sent = sent
        self._counts = list(counts)
        self._sizes = list(sizes)
        self._ticket = 0

    def submit(self, timeout_ns: int, name: str) -> int:
        """Start it and return its ticket."""
        shape, device = (sum(self._sizes), self._sent.element_size()), devices.device_of(self._sent)
        what = name, self._sent.data_ptr(), shape, _BYTES, self._sizes
        self._ticket = self._session.submit(operations.Alltoall(*what, device=device, timeout_ns=timeout_ns))
        return self._ticket

    def finish(self) -> None:
        """Copy what came to where it belongs.

        Raises:
            InvalidArgument: A rank sent another number of elements than this one expects.
        """
        came = self._session.received_splits(self._ticket, on_gpu=not self._sent.is_cpu)
        for rank, (sent, expected) in enumerate(zip(came, self._counts, strict=True)):
            if sent != expected:
                raise InvalidArgument(
                    f"all_to_all: rank {rank} sends {sent} elements to rank {self._session.rank}, "
                    f"which expects {expected}"
                )
        row = take_row(self._session, self._ticket, self._sent, torch.uint8)
        if sum(came):
            copy(self._received[: sum(came)], row.view(self._received.dtype))


class ReduceScatter:
    """Reduces a flat tensor of equal parts, one for each rank; each rank keeps its own.

    Args:
        session: Session of the group.
        output: Takes this rank's part.
        flat: Flat contiguous tensor, the parts in order of ranks; it is only read.
        op: Number of the reduction.

    Attributes:
        dtype: Number of the dtype.
        memory: What the runtime reads and writes.
    """

    def __init__(self, session: Session, output: torch.Tensor, flat: torch.Tensor, op: int) -> None:
        self._session = session
        self._output = output
        # Others may still read this rank's input while its part is written: an output inside the input gets a buffer.
        apart = output.untyped_storage().data_ptr() != flat.untyped_storage().data_ptr()
        direct = apart and is_own(output)
        self._part = output.detach() if direct else output.new_empty(output.shape)
        self._flat = torch.view_as_real(flat) if flat.is_complex() else flat
        self._op = op
        self.dtype = dtype_number(self._flat)
        self.memory = (self._flat, self._part)

    def submit(self, timeout_ns: int, name: str) -> int:
        """Start it and return its ticket."""
        flat, part, device = self._flat, self._part, devices.device_of(self._flat)
        what = name, flat.data_ptr(), part.data_ptr(), tuple(flat.shape), self.dtype, self._op
        return self._session.submit(operations.Reducescatter(*what, device=device, timeout_ns=timeout_ns))

    def finish(self) -> None:
        """Copy the part to where it belongs."""
        if self._part.data_ptr() != self._output.data_ptr() or not is_own(self._output):
            copy(self._output, self._part)


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors in a row."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def deal(received: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
    """Give each tensor its elements of a row."""
    if outputs:
        for output, part in zip(outputs, received.split([one.numel() for one in outputs]), strict=True):
            copy(output, part.view(output.shape))


def rows(tensor: torch.Tensor, parts: int) -> Sequence[torch.Tensor]:
    """Return equal parts in order of memory; parts of a tensor that is not contiguous are views along dimension 0."""
    return tensor.view(-1).chunk(parts) if tensor.is_contiguous() else tensor.chunk(parts)


_BYTES = dtype_number(torch.empty(0, dtype=torch.uint8))
