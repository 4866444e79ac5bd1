"""Common part of compressors with error feedback: state of every parameter, agreement of the ranks, saving.

Such a compressor sends an approximation of what it is given and keeps the rest, the *residual*, which it adds to the
next gradient: what was sent plus the residual is always, up to rounding, the sum of all gradients.

Source: J. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018; S. P. Karimireddy et al.,
"Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from __future__ import annotations

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ringtune import session
from ringtune.common.process_sets import ProcessSet
from ringtune.errors import InvalidArgument, Mismatch, RingtuneError
from ringtune.torch import handles
from ringtune.torch.arguments import Average, Sum
from ringtune.torch.handles import Reduction


class Named(Protocol):
    """A parameter whose gradient is reduced.

    Attributes:
        name: Its name.
        unique: Its name among those of all optimizers of this process.
        wire: Name of its allreduce between the ranks.
        param: The parameter.
    """

    name: str
    unique: str
    wire: str
    param: torch.Tensor


def digest(data: bytes) -> int:
    """Return a fingerprint that fits an int64."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


class Feedback(ABC):
    """The gradients of one optimizer under a compressor with error feedback.

    Subclasses keep their state by parameter in `parts`, reduce gradients with `submit` and `collect`.

    Args:
        settings: The compressor: equal on all ranks.
        parameters: All parameters, in the same order on all ranks.
        reduction: Operation and factors of the reduction.
        process_set: The ranks that take part.

    Raises:
        InvalidArgument: The operation is neither ``Average`` nor ``Sum``.
    """

    def __init__(
        self, settings: Any, parameters: Sequence[Named], reduction: Reduction, process_set: ProcessSet
    ) -> None:
        if reduction.op not in (Average, Sum):
            raise InvalidArgument(f"{settings}: only the operations Average and Sum can be compressed like this")
        self.reduction, self.process_set = reduction, process_set
        self.iteration = 0
        self._settings = repr((settings, reduction, [(one.name, tuple(one.param.shape)) for one in parameters]))
        self._wires = [one.wire for one in parameters]
        self._shapes = {one.name: one.param.shape for one in parameters}
        self._identity = uuid.uuid4().hex
        self._agreed: Any = None  # the session in which the ranks have agreed
        self._failure: RingtuneError | None = None

    def start(self, name: str, grad: torch.Tensor | None) -> Callable[[], torch.Tensor | None] | None:
        """Send a gradient, and in any case what was not sent before.

        Args:
            name: Its parameter.
            grad: The gradient; its memory must not change until the result is there. None: this rank has none.

        Returns:
            What waits for the reduced gradient, in the same memory where that is possible, and returns None when no
            rank has one: nothing was sent then. None where the gradient is to travel uncompressed.

        Raises:
            InvalidArgument: The gradient is on a GPU, or of another shape than the compression remembers.
        """
        if self._failure is None and self._agreed is not session.require():
            self._failure = self._agree()
        if self._failure is not None:
            return self._refuse
        if grad is not None and not grad.is_cpu:
            raise InvalidArgument(
                f"gradient '{name}' is on {grad.device}: PowerSGD and top-k compress gradients on the CPU only; "
                "use Compression.bf16, fp16 or none"
            )
        if not self.takes(name):
            return None
        if grad is not None and grad.shape != self._shapes[name]:
            raise InvalidArgument(
                f"the gradient of '{name}' is of shape {list(grad.shape)}, the compression remembers "
                f"{list(self._shapes[name])}: wrap the optimizer again after the parameter has changed its shape"
            )
        if grad is None:
            work = torch.zeros(self._shapes[name])
        else:
            work = (grad.to_dense() if grad.is_sparse else grad).detach().to(torch.float32).contiguous()
        self.submit(name, work, has=grad is not None)

        def collect() -> torch.Tensor | None:
            if not self.collect(name, work):
                return None
            if grad is None:
                return work
            if grad.is_sparse:
                return work.to(grad.dtype).to_sparse()
            if work.data_ptr() != grad.data_ptr():
                with torch.no_grad():
                    grad.copy_(work)
            return grad

        return collect

    def rest(self) -> None:
        """Nothing is under way any more."""
        self._failure = None

    def step_done(self) -> None:
        """All gradients of a step have been reduced."""
        self.iteration += 1

    def agree_anew(self) -> None:
        """Let the ranks compare their settings and shared state before the next gradient; all ranks must do so."""
        self._agreed = None

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved. The residuals belong to this rank alone."""
        now = session.require()
        return {"owner": (self._identity, now.rank, now.size), "iteration": self.iteration, "parts": self.parts_state()}

    def load_state_dict(self, saved: dict[str, Any] | None) -> None:
        """Take over what was saved; all ranks must do so, or `broadcast_optimizer_state` must follow.

        A residual goes back to where it was saved: this process, or the same rank of a job of the same size. On other
        ranks it begins at zero, so that no gradient counts twice. None: begin anew.

        Raises:
            InvalidArgument: It was saved for other parameters.
        """
        now = session.require()
        saved = saved or {"owner": ("", -1, 0), "iteration": 0, "parts": {}}
        identity, rank, size = saved["owner"]
        own = identity == self._identity or (rank, size) == (now.rank, now.size)
        self.iteration = saved["iteration"]
        self.load_parts(saved["parts"], own=own)
        self._agreed = None

    @abstractmethod
    def takes(self, name: str) -> bool:
        """Return whether the parameter's gradients are compressed at present."""

    @abstractmethod
    def submit(self, name: str, grad: torch.Tensor, *, has: bool) -> None:
        """Start the reduction of a contiguous float32 gradient, and of whether this rank has one."""

    @abstractmethod
    def collect(self, name: str, grad: torch.Tensor) -> bool:
        """Wait for the reduction and write the result into the gradient.

        Returns:
            Whether some rank has a gradient. If none has, what was not sent before is still to be sent.
        """

    @abstractmethod
    def parts_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the state by parameter: ``residual``, and what all ranks share."""

    @abstractmethod
    def load_parts(self, parts: dict[str, dict[str, torch.Tensor]], *, own: bool) -> None:
        """Take over the state by parameter, residuals only where they are `own`, else zero."""

    @abstractmethod
    def shared_digest(self) -> int:
        """Return a fingerprint of the state that all ranks must share."""

    @abstractmethod
    def restart_shared(self) -> None:
        """Begin anew with the state that all ranks share."""

    def _refuse(self) -> torch.Tensor:
        assert self._failure is not None
        raise self._failure

    def _agree(self) -> RingtuneError | None:
        """Compare settings and shared state with the other ranks; return why the step cannot go on, if so.

        The comparison goes under the name of the first gradient, so that a rank without this compressor, which reduces
        that gradient, gets an error instead of waiting.
        """
        own = torch.tensor([[digest(self._settings.encode()), self.iteration, self.shared_digest()]])
        try:
            everyone = _gather(own, self._wires[0], self.reduction.process_set)
        except Mismatch as error:
            for wire in self._wires[1:]:  # other tensors of such a rank must not wait for ever either
                _fails(wire, self.reduction.process_set)
            return error
        except RingtuneError as error:
            return error
        if (everyone[:, 0] != everyone[0, 0]).any():
            return Mismatch(
                f"the ranks compress their gradients with different settings; this rank: {self._settings}. Give "
                "DistributedOptimizer the same compression, op, factors and parameters on every rank."
            )
        self.iteration = int(everyone[:, 1].max())
        if (everyone[:, 2] != everyone[0, 2]).any():
            self.restart_shared()
        self._agreed = session.require()
        return None


def _gather(tensor: torch.Tensor, wire: str, process_set: int) -> torch.Tensor:
    now = session.require()
    ticket, _kept = handles.start_allgather(tensor, wire, process_set)
    try:
        now.wait(ticket)
        return handles.gathered(ticket, tensor.dtype)
    finally:
        now.release(ticket)


def _fails(wire: str, process_set: int) -> None:
    """Submit what matches no gradient and wait until it has failed."""
    try:
        _gather(torch.empty(0, dtype=torch.uint8), wire, process_set)
    except Mismatch:
        return
