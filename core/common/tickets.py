"""Pending operations: the tickets and buffers of a handle, and waiting for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ringtune import session
from ringtune.errors import RingtuneError


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


def at_once(synchronize: Callable[[int], Any], start: Callable[..., int], *arguments: Any) -> Any:
    """Start an operation and wait for it on this thread, which drives the runtime: no other thread is woken for it.

    Args:
        synchronize: Waits for a handle.
        start: Starts the operation and returns its handle.
        arguments: Of ``start``.
    """
    now = session.state.current
    if now is None:
        return synchronize(start(*arguments))
    now.begin_blocking()
    try:
        return synchronize(start(*arguments))
    finally:
        now.end_blocking()


def wait_all(tickets: list[int]) -> RingtuneError | None:
    """Wait for every ticket, whatever becomes of the others, and return the first failure."""
    now = session.require()
    failure: RingtuneError | None = None
    for ticket in tickets:
        try:
            now.wait(ticket)
        except RingtuneError as error:
            failure = failure or error
    return failure


def release_all(tickets: list[int]) -> None:
    """Let the runtime forget finished operations."""
    now = session.state.current
    if now is not None:
        for ticket in tickets:
            now.release(ticket)
