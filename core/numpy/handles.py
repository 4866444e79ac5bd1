"""Handles: operations on arrays that are under way. The table keeps every buffer alive until `synchronize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringtune import session
from ringtune.common import tickets
from ringtune.common.argument_checks import check_handle
from ringtune.common.tickets import Pending, release_all, wait_all
from ringtune.errors import InvalidArgument

_pending: dict[int, Pending] = {}


def register(pending: Pending) -> int:
    """Enter an operation into the table and return its handle."""
    _pending[pending.tickets[0]] = pending
    return pending.tickets[0]


def reset() -> None:
    """Forget all handles."""
    _pending.clear()


def poll(handle: int) -> bool:
    """Return whether the operation is done, so that `synchronize` would not wait.

    Raises:
        InvalidArgument: The handle is unknown or has been synchronised already.
    """
    now, tickets = session.require(), _find(handle, "poll: handle").tickets
    return all(now.poll(ticket) for ticket in tickets)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; Ctrl-C interrupts the wait.

    Returns:
        The output array; for a group all outputs.

    Raises:
        InvalidArgument: The handle is unknown or has been synchronised already.
        RuntimeFailure: The operation failed; it is named in the message.
    """
    pending = _find(handle, "synchronize: handle")
    failure = wait_all(pending.tickets)
    del _pending[handle]
    try:
        if failure is not None:
            raise failure
        return pending.finish()
    finally:
        release_all(pending.tickets)


def at_once(start: Callable[..., int], *arguments: Any) -> Any:
    """Start an operation and wait for it; see `ringtune.common.tickets.at_once`."""
    return tickets.at_once(synchronize, start, *arguments)


def _find(handle: int, what: str) -> Pending:
    check_handle(handle, what)
    found = _pending.get(handle)
    if found is None:
        raise InvalidArgument(f"Handle {handle} was not created or has been cleared.")
    return found
