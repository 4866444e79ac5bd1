"""Errors of programs: ringtune's own, found again in what XLA makes of them."""

from __future__ import annotations

import re

from ringtune import errors
from ringtune.errors import RingtuneError

_OURS = re.compile(r"\bringtune\.([A-Z]\w+): (.*)", re.DOTALL)
"""The handler's words (``native/frameworks/jax_handler.h``)."""


def translate(error: BaseException) -> RingtuneError | None:
    """Return the error of ringtune that an exception of JAX tells of, None if it is about something else."""
    found = _OURS.search(str(error))
    kind = getattr(errors, found.group(1), None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, RingtuneError)):
        return None
    return kind(found.group(2).strip())
