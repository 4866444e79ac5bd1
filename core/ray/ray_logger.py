"""``ray_logger.log(values)``: sends what rank 0 has to say to the callbacks of ``RayExecutor.run``."""

from __future__ import annotations

from typing import Any

from ringtune import session
from ringtune.errors import InvalidArgument


class _Way:
    """To the program that has called `run`.

    Attributes:
        queue: Of Ray's, where callbacks wait; None without any.
    """

    queue: Any = None


def configure(queue: Any) -> None:
    """Set where values go; None: nowhere."""
    _Way.queue = queue


def log(info: dict[str, Any]) -> None:
    """Send values to the callbacks; on other ranks than 0, and where there is no callback, nothing happens.

    Args:
        info: Names and values.

    Raises:
        InvalidArgument: It is no dictionary.
    """
    if not isinstance(info, dict):
        raise InvalidArgument(f"ray_logger.log: expected a dictionary, got {type(info).__name__}")
    now = session.state.current
    if _Way.queue is not None and (now is None or now.rank == 0):
        _Way.queue.put(info)
