"""How this process leaves its job: the reason that the other ranks receive, and its exit code."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import Any

from ringtune import native
from ringtune.bootstrap.placement import Placement
from ringtune.errors import PeerLost, ShutDown

_MESSAGE_LENGTH = 400
"""Longest part of an error's message that is sent to the other ranks, in characters."""


def key_of_loss(job: str, rank: int) -> str:
    """Key under which a rank tells its launcher that it fails because it has lost another one, and how."""
    return f"{job}/lost/{rank}"


def tell_of_loss(placement: Placement, store: Any) -> None:
    """Tell `ringtune run` that this process fails because it has lost another rank, so that it names that one.

    Args:
        placement: Of this process.
        store: Client of the launcher's store, None for a job of one.
    """
    error = getattr(sys, "last_value", None)
    if not isinstance(error, (PeerLost, ShutDown)) or placement.launcher != "ringtune" or store is None:
        return
    with suppress(native.error_class()):  # the launcher may be gone
        store.set(key_of_loss(placement.job, placement.rank), _one_line(error).encode())


_failed_threads: list[str] = []


def watch_exits() -> None:
    """Notice from now on with which code the script exits, and what ends a thread of it. Idempotent."""
    native.load().watch_exits()
    before = threading.excepthook
    if getattr(before, "notes_for_departure", False):
        return

    def note(args: Any) -> None:
        if args.exc_type is not SystemExit:
            name = args.thread.name if args.thread is not None else "a thread"
            _failed_threads.append(f"its thread {name!r} ended with {_one_line(args.exc_value)}")
        before(args)

    note.notes_for_departure = True  # type: ignore[attr-defined]
    threading.excepthook = note


def _exit_status() -> tuple[int, str]:
    """Return the code with which the script exits, and its words where it gave some; 0 where it came to its end."""
    code = native.load().exit_code()
    if code is None or isinstance(code, int):
        return int(code or 0) & 0xFF, ""
    return 1, _short(str(code))


def departure(*, at_exit: bool) -> tuple[str, bool]:
    """Return how this rank leaves, as the words behind "rank 1 on host b", and whether by an error.

    The others get it as the reason why what they wait for cannot complete; empty after a plain ``shutdown()``.

    Args:
        at_exit: The process ends; else the script has called ``shutdown()``.
    """
    error = getattr(sys, "last_value", None) if at_exit else sys.exc_info()[1]
    if isinstance(error, BaseException):
        return ("ended its script with " if at_exit else "has shut down after ") + _one_line(error), True
    code, words = _exit_status() if at_exit else (0, "")
    if code != 0:
        return f"exited with code {code}" + (f": {words}" if words else ""), True
    if not at_exit:
        return "", False
    return " after ".join(["has come to the end of its script", *_failed_threads[:1]]), False


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_LENGTH else text[:_MESSAGE_LENGTH] + " ..."


def _one_line(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # the object's own method may raise anything
        message = ""
    return _short(type(error).__name__ + (f": {message}" if message else ""))


def exit_code() -> int | None:
    """Return the process's exit code as far as it is known while the session closes: None unless it fails."""
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        return 130
    return 1 if hasattr(sys, "last_value") else _exit_status()[0] or None
