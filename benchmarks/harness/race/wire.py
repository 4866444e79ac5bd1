"""The protocol between the driver of a race and the ranks: lines of JSON over one TCP connection per rank.

Every rank has a connection of its own, on which it waits blocked: between bursts no rank of any contender uses a core.

| from | line |
|---|---|
| rank | `{"token", "rank", "size", "pid", "about"}` once, after it has connected |
| driver | `{"do": "open", "contender"}` and what the task is: `"sizes_bytes", "dtype", "device"`, or what is trained |
| rank | `{"max_calls"}`, or `{"unsupported": why}` |
| driver | `{"do": "burst", "contender", "loops", "calls", "lead_in"}` |
| rank | `{"ns"}`: nanoseconds per call |
| driver | `{"do": "close"}`: the case is over, its memory can go |
| rank | `{}` |
| driver | `{"do": "exit"}`: no answer; the end of the connection means the same |

A rank that cannot go on answers any order with `{"failed": why}`.
"""

from __future__ import annotations

import json
import socket
from typing import Any


class Wire:
    """One end of a connection. Owns `connection`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._pending = b""

    def fileno(self) -> int:
        """Returns the descriptor, for selectors."""
        return self._connection.fileno()

    def send(self, **fields: Any) -> None:
        """Sends one line.

        Raises:
            OSError: the other end is gone.
        """
        self._connection.sendall(json.dumps(fields, separators=(",", ":")).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Waits for one line and returns its fields, None at the end of the connection.

        Raises:
            ValueError: the line is no JSON object.
            OSError: the connection broke.
        """
        while b"\n" not in self._pending:
            data = self._connection.recv(1 << 16)
            if not data:
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError(f"expected a JSON object, got {line[:80]!r}")
        return fields

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


def dial(address: str) -> Wire:
    """Returns a connection to `address`, ``host:port``."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.settimeout(None)
    return Wire(connection)
