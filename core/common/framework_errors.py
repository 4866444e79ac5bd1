"""Errors of the runtime that a framework has raised as errors of its own."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TypeVar

from ringtune import errors
from ringtune.errors import RingtuneError

R = TypeVar("R")

_TEXT = re.compile(r"\bringtune\.(?:errors\.)?([A-Z]\w+): (.*?)(?:\n\t|\nTraceback |\Z)", re.DOTALL)
"""How handlers and kernels write them (``native/frameworks/``); TensorFlow adds lines about its graph
and of Python."""


def failure_of(error: BaseException) -> RingtuneError | None:
    """Return ringtune's error that a framework has raised as one of its own; None when it is another's."""
    found = _TEXT.search(getattr(error, "message", None) or str(error))
    kind = getattr(errors, found[1], None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, RingtuneError):
        return None
    return kind(found[2].strip())


def failures_as_ours(func: Callable[..., R], kind: type[Exception] = Exception) -> Callable[..., R]:
    """Let a function raise ringtune's own error where a framework has raised it as one of its own, of a class ``kind``.

    All other errors pass.
    """

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> R:
        try:
            return func(*args, **kwargs)
        except RingtuneError:
            raise
        except kind as error:
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error

    return call
