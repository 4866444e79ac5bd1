"""PowerSGD: a gradient travels as two thin factors of a low-rank approximation of it.

A gradient of more than one dimension is taken as a matrix M of n rows (its first dimension) and m columns:

    M <- M + E                        E: residual, n x m
    P <- mean over ranks of M Q       n x r
    P <- orthonormalised P
    Q <- mean over ranks of M' P      m x r
    result <- P Q';  E <- M - P Q'    Q is the start of the next step

P and Q are small; the runtime fuses them. Each is reduced while backward still runs; the result is written over the
gradient and taken out of the residual in one native pass.

Source: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019. Names and defaults are those of torch's ``powerSGD_hook``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ringtune import native, session
from ringtune.common.process_sets import ProcessSet
from ringtune.errors import InvalidArgument, RingtuneError
from ringtune.operations import Allreduce
from ringtune.torch.arguments import Average, Sum
from ringtune.torch.feedback import Feedback, Named, digest
from ringtune.torch.handles import DTYPES, Reduction

if TYPE_CHECKING:
    from ringtune.torch.compression import PowerSGDCompressor


class _Matrix:
    """A parameter that is compressed.

    Attributes:
        residual: n x m; while the gradient is under way the sum of both. None: without error feedback.
        sent: What is approximated: the residual's memory, or the gradient's.
        first: P, and behind it the share of the ranks that have a gradient.
        left: P, r x n.
        right: Q, r x m.
        ticket: Of the factor that is under way, 0 = none.
    """

    def __init__(self, index: int, one: Named, rank: int) -> None:
        self.index, self.wire = index, one.wire
        rows = one.param.shape[0]
        columns = one.param.numel() // rows
        self.shape = (rows, columns)
        self.residual: torch.Tensor | None = None
        self.sent = torch.empty(0)
        self.first = torch.empty(min(rank, rows, columns) * rows + 1)
        self.left = self.first[:-1].view(-1, rows)
        self.right = torch.empty(min(rank, rows, columns), columns)
        self.ticket = 0
        self.some = True  # whether any rank has a gradient
        self.failure: RingtuneError | None = None


class PowerSGD(Feedback):
    """The gradients of one optimizer under `PowerSGDCompressor`."""

    def __init__(
        self, settings: PowerSGDCompressor, parameters: Sequence[Named], reduction: Reduction, process_set: ProcessSet
    ) -> None:
        super().__init__(settings, parameters, reduction, process_set)
        self.settings = settings
        self._parts = {
            one.name: _Matrix(index, one, settings.rank)
            for index, one in enumerate(parameters)
            if self._compresses(one.param)
        }
        self._first: deque[_Matrix] = deque()  # whose P is under way
        self.restart_shared()
        if settings.use_error_feedback:
            for part in self._parts.values():
                part.residual = torch.zeros(part.shape)

    def takes(self, name: str) -> bool:
        return name in self._parts and self.iteration >= self.settings.start_iteration

    def submit(self, name: str, grad: torch.Tensor, *, has: bool) -> None:
        part = self._parts[name]
        matrix = grad.view(part.shape)
        part.sent = matrix if part.residual is None else part.residual.add_(matrix)
        if not self.settings.warm_start:
            self._seed(part)
        torch.mm(part.right, part.sent.t(), out=part.left)
        part.first[-1] = has
        part.ticket, part.failure = self._reduce(part.first, f"{part.wire}.p"), None
        self._first.append(part)
        now = session.require()
        while self._first and now.poll(self._first[0].ticket):
            self._go_on(self._first.popleft())

    def collect(self, name: str, grad: torch.Tensor) -> bool:
        while self._first:  # all of them, so that the second factors travel together
            self._go_on(self._first.popleft())
        part = self._parts[name]
        if part.failure is not None:
            raise part.failure
        if not part.some:
            part.sent = torch.empty(0)
            return False
        self._wait(part)
        rows, columns = part.shape
        size = self.process_set.size() or 1
        factor = self.reduction.prescale * self.reduction.postscale * (size if self.reduction.op == Sum else 1)
        residual = 0 if part.residual is None else part.residual.data_ptr()
        native.load().apply_low_rank(
            grad.data_ptr(),
            residual,
            part.left.data_ptr(),
            part.right.data_ptr(),
            len(part.left),
            rows,
            columns,
            factor,
        )
        part.sent = torch.empty(0)
        self._orthonormalise(part.right)
        dead = ~part.right.any(1)
        if dead.any():  # a direction without any gradient: another one may have some
            part.right[dead] = self._random(part)[dead]
        return True

    def parts_state(self) -> dict[str, dict[str, torch.Tensor]]:
        return {
            name: {"right": part.right} | ({} if part.residual is None else {"residual": part.residual})
            for name, part in self._parts.items()
        }

    def load_parts(self, parts: dict[str, dict[str, torch.Tensor]], *, own: bool) -> None:
        self.restart_shared()
        for name, part in self._parts.items():
            saved = parts.get(name, {})
            right, residual = saved.get("right"), saved.get("residual") if own else None
            for one, target in ((right, part.right), (residual, part.residual)):
                if one is not None and target is not None and one.shape != target.shape:
                    raise InvalidArgument(
                        f"compression of parameter {name!r}: saved with shape {list(one.shape)}, expected "
                        f"{list(target.shape)}; load it with the rank it was saved with"
                    )
            if right is not None:
                part.right.copy_(right)
            if part.residual is not None:
                part.residual.zero_() if residual is None else part.residual.copy_(residual)

    def shared_digest(self) -> int:
        return digest(b"".join(part.right.numpy().tobytes() for part in self._parts.values()))

    def restart_shared(self) -> None:
        for part in self._parts.values():
            self._seed(part)

    def _compresses(self, param: torch.Tensor) -> bool:
        """Whether the factors are smaller than the gradient by `min_compression_rate` at least."""
        if param.dtype is not torch.float32 or param.dim() < 2 or param.numel() == 0:
            return False
        rows = param.shape[0]
        columns = param.numel() // rows
        rank = min(self.settings.rank, rows, columns)
        return (rows + columns) * rank * self.settings.min_compression_rate < rows * columns

    def _seed(self, part: _Matrix) -> None:
        part.right.copy_(self._random(part))

    def _random(self, part: _Matrix) -> torch.Tensor:
        """Return a start for Q: uniform numbers, which are the same on every processor."""
        generator = torch.Generator().manual_seed(
            self.settings.random_seed * 1_000_003 + part.index * 7919 + (self.iteration % 1_000_003) * 104_729
        )
        start = torch.rand(part.right.shape, generator=generator).mul_(2).sub_(1)
        self._orthonormalise(start)
        return start

    def _go_on(self, part: _Matrix) -> None:
        """Wait for the first factor and start the second."""
        try:
            self._wait(part)
            part.some = float(part.first[-1]) > 0
            if not part.some:
                return
            self._orthonormalise(part.left)
            torch.mm(part.left, part.sent, out=part.right)
            part.ticket = self._reduce(part.right, f"{part.wire}.q")
        except RingtuneError as error:
            part.failure = error

    def _reduce(self, factor: torch.Tensor, wire: str) -> int:
        address = factor.data_ptr()
        return session.require().submit(
            Allreduce(
                wire, address, address, tuple(factor.shape), DTYPES[torch.float32], Average,
                process_set=self.reduction.process_set,
            )
        )  # fmt: skip

    @staticmethod
    def _wait(part: _Matrix) -> None:
        now = session.require()
        ticket, part.ticket = part.ticket, 0
        try:
            now.wait(ticket)
        finally:
            now.release(ticket)

    @staticmethod
    def _orthonormalise(vectors: torch.Tensor) -> None:
        native.load().orthonormalise(vectors.data_ptr(), *vectors.shape)
