"""Operations under way: submitting them, waiting for them, taking what they yield.

The part of a session that front ends work with. All exceptions of the native runtime are translated here and in
`ringtune.session`, which alone know it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from ringtune import native
from ringtune.errors import InvalidArgument
from ringtune.operations import (
    AddProcessSet,
    Allreduce,
    Join,
    Operation,
    Reducescatter,
    RemoveProcessSet,
    check_fields,
    group_names,
)
from ringtune.runtime import Runtime, Ticket

WAIT_SLICE_NS = 100_000_000
"""Longest time inside the runtime without looking at signals, so that Ctrl-C is answered within it."""

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Self = TypeVar("_Self", bound="Tickets")


def translated(method: Callable[Concatenate[_Self, _Given], _Result]) -> Callable[Concatenate[_Self, _Given], _Result]:
    """Let a method raise the runtime's exceptions as `ringtune.errors` has them."""

    @functools.wraps(method)
    def call(self: _Self, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        try:
            return method(self, *given, **named)
        except self._error as error:
            raise native.translate(error) from None

    return call


class Tickets:
    """Submits operations and follows them. Any thread.

    Args:
        runtime: The native runtime, or what behaves like it.

    Attributes:
        begin_blocking: From here to `end_blocking` the calling thread waits for what it submits: it drives the runtime,
            and no other thread is woken for that.
        end_blocking: Its end.
        result_memory: Returns an owning buffer of so many bytes in memory that earlier results have left: fresh pages
            cost more than a collective.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._error = native.error_class()
        # Bound methods of the runtime: a call that repeats itself enters no frame of Python.
        self.begin_blocking, self.end_blocking = runtime.begin_blocking, runtime.end_blocking
        self.result_memory = runtime.result_memory

    def submit(self, operation: Operation) -> Ticket:
        """Start an operation; its buffers must stay alive until its ticket is done. `release` must follow.

        Raises:
            InvalidArgument: The name is in flight already, or a field is invalid on this rank; nothing was started.
            ShutDown: The runtime has been shut down.
        """
        try:
            return operation.start(self._runtime)
        except self._error as error:
            raise native.translate(error) from None
        except TypeError:  # of the binding, which names no field
            check_fields(operation)
            raise

    def submit_group(self, name: str, members: Sequence[Allreduce | Reducescatter]) -> list[Ticket]:
        """Start operations that run together: when all of them are ready on all ranks.

        Args:
            name: Of the group, which names its members too.
            members: They are changed: each gets its name, the group and its size.

        Raises:
            InvalidArgument: See `submit`; or there are no members.
        """
        if not members:
            raise InvalidArgument(f"group '{name}' has no members, expected at least one")
        for member, own in zip(members, group_names(name, len(members)), strict=True):
            member.name, member.group, member.group_size = own, name, len(members)
        return [self.submit(member) for member in members]

    def decide(self, operation: Join | AddProcessSet | RemoveProcessSet) -> int:
        """Submit what all ranks decide together, wait, and return the number decided.

        Raises:
            RuntimeFailure: The ranks disagree.
            InvalidArgument: It is invalid on this rank.
        """
        ticket = self.submit(operation)
        try:
            self.wait(ticket)
            return self._runtime.decided_number(ticket)
        finally:
            self.release(ticket)

    @translated
    def poll(self, ticket: Ticket) -> bool:
        """Return whether the operation is done (or failed), without waiting."""
        return self._runtime.poll(ticket)

    def wait(self, ticket: Ticket) -> None:
        """Wait until the operation is done; Ctrl-C interrupts the wait, not the operation.

        Raises:
            RuntimeFailure: The operation failed, on all ranks; the subclass says how.
        """
        wait = self._runtime.wait
        try:
            while not wait(ticket, WAIT_SLICE_NS):
                pass
        except self._error as error:
            raise native.translate(error) from None

    @translated
    def wait_for(self, ticket: Ticket, timeout_ns: int) -> bool:
        """Wait at most so long; False when the operation is not done then. Raises as `wait` does."""
        deadline_ns = time.monotonic_ns() + timeout_ns
        while not self._runtime.wait(ticket, max(0, min(WAIT_SLICE_NS, deadline_ns - time.monotonic_ns()))):
            if time.monotonic_ns() >= deadline_ns:
                return False
        return True

    @translated
    def attend(self, ticket: Ticket, timeout_ns: int) -> bool:
        """Wait as `wait_for`, without asking for the operation: it may be held back for a caller who does."""
        return self._runtime.attend(ticket, timeout_ns)

    @translated
    def awaited(self, ticket: Ticket, timeout_ns: int) -> list[int]:
        """Return which ranks have not come yet, as far as rank 0 says so in time."""
        return self._runtime.awaited(ticket, timeout_ns)

    def release(self, ticket: Ticket) -> None:
        """Forget a finished operation."""
        self._runtime.release(ticket)

    # -- results -----------------------------------------------------------------------------------------------------

    @translated
    def output_of(self, ticket: Ticket) -> int:
        """Return the address that an operation writes to."""
        return self._runtime.output_of(ticket)

    @translated
    def take_gathered(self, ticket: Ticket) -> tuple[tuple[int, ...], Any]:
        """Return shape and bytes (an owning buffer) of a finished allgather or alltoall in memory of the host."""
        return self._runtime.take_gathered(ticket)

    @translated
    def received_splits(self, ticket: Ticket, *, on_gpu: bool = False) -> list[int]:
        """Return how many rows of a finished alltoall came from each rank."""
        return self._runtime.gathered_splits(ticket) if on_gpu else self._runtime.received_splits(ticket)

    @translated
    def gathered_shape(self, ticket: Ticket) -> list[int]:
        """Return the shape of what a finished allgather or alltoall on a GPU yields."""
        return self._runtime.gathered_shape(ticket)

    @translated
    def deliver(self, ticket: Ticket, address: int, stream: int) -> None:
        """Bring what a finished allgather or alltoall on a GPU yields to memory there, before later work of a stream.

        Raises:
            DeviceError: The driver refuses.
        """
        self._runtime.deliver(ticket, address, stream)

    @translated
    def join_stream(self, ticket: Ticket, stream: int) -> None:
        """Make a stream of the GPU wait for the result of a finished operation; the host does not.

        Raises:
            DeviceError: The driver refuses.
        """
        self._runtime.join_stream(ticket, stream)

    # -- ranks and threads -------------------------------------------------------------------------------------------

    def process_sets(self) -> dict[int, list[int]]:
        """Return the ranks of every registered process set by number."""
        return self._runtime.process_sets()

    def set_compute_threads(self, threads: int) -> None:
        """Say how many threads of the framework compute, so that the runtime leaves them their cores."""
        self._runtime.set_compute_threads(threads)

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def transports(self) -> list[str]:
        """How this rank reaches each rank, by rank; ``self`` for its own."""
        return list(self._runtime.transports)

    def uses_nccl(self) -> bool:
        """Return whether tensors go from GPU to GPU by NCCL; a job shows that only after it has begun."""
        return self._runtime.uses_nccl()

    def counters(self) -> dict[str, int]:
        """Return the sums since the session began, by the names of `ringtune.stats.StepStats`."""
        return self._runtime.counters()

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Return operations and bytes of each kind of operation since the session began."""
        return self._runtime.traffic()

    @property
    def stalls(self) -> int:
        """Stalls that this rank has reported."""
        return self._runtime.stalls

    @property
    def reported_stall(self) -> tuple[int, list[tuple[str, str, int, list[int]]]]:
        """When this rank saw the stall that it reported last, by the monotonic clock in ns, and what waits in it.

        Of each operation title, name, age in ns then, and missing ranks. Nothing and 0: it reported none.
        """
        return self._runtime.reported_stall

    @property
    def open_operations(self) -> int:
        """Operations that were submitted and are not done."""
        return self._runtime.open_operations
