"""Operations of a process group that give the ranks different parts: exchange of parts, reduction of parts.

Each holds the buffers that the runtime reads and writes; `submit` starts it under a name, `finish` moves the result to
where it belongs when its ticket is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringtune import native
from ringtune.errors import InvalidArgument
from ringtune.session import Session
from ringtune.torch.arguments import Average, Sum
from ringtune.torch.distributed.works import copy
from ringtune.torch.handles import dtype_number


class Exchange:
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

    def submit(self, name: str) -> int:
        """Start it and return its ticket."""
        item = self._sent.element_size()
        shape = (sum(self._sizes), item)
        with native.translated():
            self._ticket = self._session.runtime.alltoall(name, self._sent.data_ptr(), shape, _BYTES, self._sizes, 0)
        return self._ticket

    def finish(self) -> None:
        """Copy what came to where it belongs.

        Raises:
            InvalidArgument: A rank sent another number of elements than this one expects.
        """
        came = list(self._session.runtime.received_splits(self._ticket))
        for rank, (sent, expected) in enumerate(zip(came, self._counts, strict=True)):
            if sent != expected:
                raise InvalidArgument(
                    f"all_to_all: rank {rank} sends {sent} elements to rank {self._session.rank}, "
                    f"which expects {expected}"
                )
        _, buffer = self._session.take_gathered(self._ticket)
        if sum(came):
            copy(self._received[: sum(came)], torch.frombuffer(buffer, dtype=torch.uint8).view(self._received.dtype))


class PartReduction:
    """Reduces a flat tensor of equal parts, one for each rank; each rank keeps its own.

    Args:
        session: Session of the group.
        output: Takes this rank's part.
        flat: Flat contiguous tensor, the parts in order of ranks; it is only read.
        op: Number of the reduction.

    Raises:
        InvalidArgument: Complex tensors with another reduction than sum and average.
    """

    def __init__(self, session: Session, output: torch.Tensor, flat: torch.Tensor, op: int) -> None:
        if flat.is_complex() and op not in (Sum, Average):
            raise InvalidArgument("complex tensors can be summed and averaged only")
        self._session = session
        self._output = output
        # Others may still read this rank's input while its part is written: an output inside the input gets a buffer.
        apart = output.untyped_storage().data_ptr() != flat.untyped_storage().data_ptr()
        direct = apart and output.is_contiguous()
        self._part = output.detach() if direct else torch.empty(output.shape, dtype=output.dtype)
        self._flat = torch.view_as_real(flat) if flat.is_complex() else flat
        self._op = op
        self.dtype = dtype_number(self._flat)

    def submit(self, name: str) -> int:
        """Start it and return its ticket."""
        shape = tuple(self._flat.shape)
        with native.translated():
            ticket: int = self._session.runtime.reducescatter(
                name, self._flat.data_ptr(), self._part.data_ptr(), shape, self.dtype, self._op, 1.0, 1.0
            )
        return ticket

    def finish(self) -> None:
        """Copy the part to where it belongs."""
        if self._part.data_ptr() != self._output.data_ptr():
            copy(self._output, self._part)


_BYTES = dtype_number(torch.empty(0, dtype=torch.uint8))
