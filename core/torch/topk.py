"""Top-k sparsification: of a gradient only the elements of largest magnitude travel, with their indices.

What does not travel stays in the residual. Adding the gradient to the residual, choosing the elements and taking them
out is one native call of two passes; several parameters share one allgather, which starts during backward.

Source: A. F. Aji, K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Y. Lin et al.,
"Deep Gradient Compression", ICLR 2018 (without its momentum correction and warm-up).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ringtune import native, session
from ringtune.common.process_sets import ProcessSet
from ringtune.errors import InvalidArgument, RingtuneError
from ringtune.torch import handles
from ringtune.torch.arguments import Average
from ringtune.torch.feedback import Feedback, Named
from ringtune.torch.handles import Reduction

if TYPE_CHECKING:
    from ringtune.torch.compression import TopKCompressor

_BUCKET_BYTES = 256 << 10
"""Payload of one allgather at least, if there are parameters enough: as large as pays off, so that it starts early."""


class _Vector:
    """A parameter that is compressed.

    Attributes:
        residual: As long as the gradient, flat.
        indices: int32, indices of this rank's elements; part of the bucket's payload.
        values: float32, these elements; part of the bucket's payload.
        length: Of its part of the payload.
    """

    def __init__(self, one: Named, wanted: int) -> None:
        self.name, self.unique = one.name, one.unique
        self.wanted, self.length = wanted, 2 * wanted + 1
        self.residual = torch.zeros(one.param.numel())
        self.indices = torch.empty(0, dtype=torch.int32)
        self.values = torch.empty(0)
        self.begin = 0


class _Bucket:
    """Parameters whose elements travel together: of each its indices, its values, then whether the rank has a gradient.

    Attributes:
        ticket: Of the allgather, 0 = none.
        failure: Why there is no result.
        ready: Parameters whose elements have been picked.
        collected: Parameters whose results have been written.
        gathered: Payloads by rank, once they have come.
    """

    def __init__(self, parts: Sequence[_Vector]) -> None:
        self.parts = list(parts)
        self.payload = torch.zeros(sum(part.length for part in parts), dtype=torch.int32)
        begin = 0
        for part in parts:
            middle, end = begin + part.wanted, begin + 2 * part.wanted
            part.begin, part.indices = begin, self.payload[begin:middle]
            part.values = self.payload[middle:end].view(torch.float32)
            begin += part.length
        self.rest()

    def rest(self) -> None:
        self.ready = self.collected = self.ticket = 0
        self.gathered: torch.Tensor | None = None
        self.failure: RingtuneError | None = None


class TopK(Feedback):
    """The gradients of one optimizer under `TopKCompressor`."""

    def __init__(
        self, settings: TopKCompressor, parameters: Sequence[Named], reduction: Reduction, process_set: ProcessSet
    ) -> None:
        super().__init__(settings, parameters, reduction, process_set)
        vectors = [
            _Vector(one, max(1, int(one.param.numel() * settings.ratio)))
            for one in reversed(parameters)  # as backward makes them
            if one.param.dtype is torch.float32 and settings.min_elements <= one.param.numel() < 2**31
        ]
        self._buckets = [_Bucket(parts) for parts in _split(vectors)]
        self._parts = {part.name: (bucket, part) for bucket in self._buckets for part in bucket.parts}

    def takes(self, name: str) -> bool:
        return name in self._parts

    def submit(self, name: str, grad: torch.Tensor, *, has: bool) -> None:
        bucket, part = self._parts[name]
        native.load().pick_largest(
            part.residual.data_ptr(), grad.data_ptr(), grad.numel(), part.wanted, part.indices.data_ptr(),
            part.values.data_ptr(),
        )  # fmt: skip
        bucket.payload[part.begin + part.length - 1] = has
        bucket.ready += 1
        if bucket.ready == len(bucket.parts):
            wire = handles.wire_name("allgather", f"topk.{bucket.parts[0].unique}", self.reduction.process_set)
            bucket.ticket, _kept = handles.start_allgather(bucket.payload, wire, self.reduction.process_set)

    def collect(self, name: str, grad: torch.Tensor) -> bool:
        bucket, part = self._parts[name]
        size = (self.process_set.size() or 1) if self.reduction.op == Average else 1
        factor = self.reduction.prescale * self.reduction.postscale / size
        try:
            everyone = self._gathered(bucket)
            if not everyone[:, part.begin + part.length - 1].any():
                _add(bucket.payload, part, part.residual, 1.0)
                return False
            grad.zero_()
            for payload in everyone:  # in order, so that the sum is the same everywhere
                _add(payload, part, grad, factor)
            return True
        finally:
            bucket.collected += 1
            if bucket.collected == bucket.ready:
                bucket.rest()

    def parts_state(self) -> dict[str, dict[str, torch.Tensor]]:
        return {name: {"residual": part.residual} for name, (_, part) in self._parts.items()}

    def load_parts(self, parts: dict[str, dict[str, torch.Tensor]], *, own: bool) -> None:
        for name, (_, part) in self._parts.items():
            saved = parts.get(name, {}).get("residual") if own else None
            if saved is None:
                part.residual.zero_()
                continue
            if saved.shape != part.residual.shape:
                raise InvalidArgument(
                    f"compression of parameter {name!r}: saved with {saved.numel()} elements, expected "
                    f"{part.residual.numel()}"
                )
            part.residual.copy_(saved)

    def shared_digest(self) -> int:
        return 0

    def restart_shared(self) -> None:
        """Do nothing: the ranks share no state."""

    def _gathered(self, bucket: _Bucket) -> torch.Tensor:
        """Wait for the payloads of all ranks; without a ticket nothing was sent, and nothing is added up."""
        if bucket.failure is not None:
            raise bucket.failure
        if bucket.gathered is None and bucket.ticket == 0:
            return torch.empty(0, len(bucket.payload), dtype=torch.int32)
        if bucket.gathered is None:
            now = session.require()
            try:
                now.wait(bucket.ticket)
                bucket.gathered = handles.gathered(bucket.ticket, torch.int32).view(-1, len(bucket.payload))
            except RingtuneError as error:
                bucket.failure = error
                raise
            finally:
                now.release(bucket.ticket)
        return bucket.gathered


def _add(payload: torch.Tensor, part: _Vector, out: torch.Tensor, factor: float) -> None:
    """Add one rank's elements."""
    indices = payload.data_ptr() + 4 * part.begin
    values = indices + 4 * part.wanted
    with native.translated():
        native.load().add_sparse(out.data_ptr(), out.numel(), indices, values, part.wanted, factor)


def _split(vectors: Sequence[_Vector]) -> list[list[_Vector]]:
    """Cut into buckets; the last one may be smaller."""
    buckets: list[list[_Vector]] = []
    room = 0
    for one in vectors:
        if room <= 0:
            buckets.append([])
            room = _BUCKET_BYTES
        buckets[-1].append(one)
        room -= 8 * one.wanted
    return buckets
