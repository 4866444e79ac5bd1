"""Marked lines on standard output: how a worker reports to the command that started it.

Standard output reaches the starting command from every host and through every launcher, which files and sockets do
not. Everything else that a worker prints stays ordinary output.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TypeVar

MARK = "@ringtune-bench "

_Config = TypeVar("_Config")


def send(event: str, **fields: Any) -> None:
    """Prints one marked line with `event` and JSON-representable fields."""
    line = MARK + json.dumps({"event": event, **fields}, separators=(",", ":"))
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def receive(line: str) -> dict[str, Any] | None:
    """Returns the fields (``event`` among them) of a marked line, None for any other line."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "event" in fields else None


def read_config(kind: type[_Config], text: str) -> _Config:
    """Returns the dataclass whose `dataclasses.asdict` a command gave its workers as JSON."""
    return kind(**json.loads(text))
