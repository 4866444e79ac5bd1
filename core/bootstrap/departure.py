"""How this process leaves its job: the reason that the other ranks receive, and its exit code."""

from __future__ import annotations

import sys

_MESSAGE_LENGTH = 400
"""Longest part of an error's message that is sent to the other ranks, in characters."""


def departure(*, at_exit: bool) -> tuple[str, bool]:
    """Return how this rank leaves, as the words behind "rank 1 on host b", and whether by an error.

    The others get it as the reason why what they wait for cannot complete; empty after a plain ``shutdown()``.

    Args:
        at_exit: The process ends; else the script has called ``shutdown()``.
    """
    error = getattr(sys, "last_value", None) if at_exit else sys.exc_info()[1]
    if isinstance(error, BaseException):
        return ("ended its script with " if at_exit else "has shut down after ") + _one_line(error), True
    return "has come to the end of its script" if at_exit else "", False


def _one_line(error: BaseException) -> str:
    try:
        message = " ".join(str(error).split())
    except Exception:  # the object's own method may raise anything
        message = ""
    text = type(error).__name__ + (f": {message}" if message else "")
    return text if len(text) <= _MESSAGE_LENGTH else text[:_MESSAGE_LENGTH] + " ..."


def exit_code() -> int | None:
    """Return the process's exit code as far as it is known while the session closes: None unless it fails."""
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        return 130
    return 1 if hasattr(sys, "last_value") else None
