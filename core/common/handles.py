"""Handles of asynchronous calls, as every front end has them: the ticket of the operation, of a group of its first one.

The table keeps every buffer alive until `Handles.synchronize`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ringtune import session
from ringtune.common.argument_checks import check_handle
from ringtune.errors import InvalidArgument, RingtuneError


@dataclass
class Pending:
    """What belongs to a handle.

    Attributes:
        tickets: Tickets of its operations.
        finish: Makes the result when all are done.
        keep: Buffers the runtime reads or writes.
    """

    tickets: list[int]
    finish: Callable[[], Any]
    keep: list[Any] = field(default_factory=list)


class Handles:
    """The handles of one front end.

    Args:
        table: Where they are kept: a `Pending` by handle, or a result itself that its operation writes.

    Attributes:
        wait: How `at_once` waits: `synchronize`, or what goes before it.
    """

    def __init__(self, table: dict[int, Any] | None = None) -> None:
        self._table: dict[int, Any] = {} if table is None else table
        self.wait: Callable[[int], Any] = self.synchronize

    def register(self, pending: Pending) -> int:
        """Enter an operation and return its handle."""
        handle = pending.tickets[0]
        self._table[handle] = pending
        return handle

    def reset(self) -> None:
        """Forget all handles."""
        self._table.clear()

    def poll(self, handle: int) -> bool:
        """Return whether the operation is done, so that `synchronize` would not wait.

        Raises:
            InvalidArgument: The handle is unknown or has been synchronised already.
        """
        tickets, _ = self._find(handle, "poll: handle")
        now = session.require()
        return all(now.poll(ticket) for ticket in tickets)

    def synchronize(self, handle: int) -> Any:
        """Wait for an operation and return its result; Ctrl-C interrupts the wait.

        Returns:
            The output; for a group all outputs.

        Raises:
            InvalidArgument: The handle is unknown or has been synchronised already.
            RuntimeFailure: The operation failed; it is named in the message.
        """
        tickets, finish = self._find(handle, "synchronize: handle")
        failure = _wait_all(tickets)
        del self._table[handle]
        try:
            if failure is not None:
                raise failure
            return finish()
        finally:
            now = session.state.current
            if now is not None:
                for ticket in tickets:
                    now.release(ticket)

    def at_once(self, start: Callable[..., int], *arguments: Any) -> Any:
        """Start an operation and wait for it on this thread, which drives the runtime: no other thread is woken for it.

        Args:
            start: Starts the operation and returns its handle.
            arguments: Of ``start``.
        """
        now = session.state.current
        if now is None:
            return self.wait(start(*arguments))
        now.begin_blocking()
        try:
            return self.wait(start(*arguments))
        finally:
            now.end_blocking()

    def _find(self, handle: int, what: str) -> tuple[list[int], Callable[[], Any]]:
        check_handle(handle, what)
        found = self._table.get(handle)
        if found is None:
            raise InvalidArgument(f"Handle {handle} was not created or has been cleared.")
        tickets: list[int] | None = getattr(found, "tickets", None)
        return ([handle], lambda: found) if tickets is None else (tickets, found.finish)


def _wait_all(tickets: list[int]) -> RingtuneError | None:
    """Wait for every ticket, whatever becomes of the others, and return the first failure."""
    now = session.require()
    failure: RingtuneError | None = None
    for ticket in tickets:
        try:
            now.wait(ticket)
        except RingtuneError as error:
            failure = failure or error
    return failure
