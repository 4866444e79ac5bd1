"""Ports for tests whose processes meet at a given one."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket

# Below those that the kernel deals out by itself: one of them may be another socket's before a job opens it.
_PORTS = itertools.cycle(random.SystemRandom().sample(range(12_000, 32_000), 20_000))


def free_port() -> int:
    """Return a port that is free, and that no call before has given."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):  # taken: the next one
            probe.bind(("", port))
            return port
