"""Collectives whose caller waits at once: torch's blocking calls say so in their options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])


def may_block(method: _Method) -> _Method:
    """Make a collective of a process group wait where its options say that the caller blocks.

    The calling thread drives the runtime then, and no other one is woken for it (`Session.begin_blocking`).
    ``asyncOp`` of the options is false in ``torch.distributed``'s blocking calls, and true where nothing is said.
    """

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        opts = named.get("opts", arguments[-1] if arguments else None)
        if getattr(opts, "asyncOp", True):
            return method(self, *arguments, **named)
        session = self.session
        session.begin_blocking()
        try:
            work = method(self, *arguments, **named)
            work.wait()
        finally:
            session.end_blocking()
        return work

    found: Any = call
    return found  # type: ignore[no-any-return]
