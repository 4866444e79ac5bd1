"""Ports for tests whose processes meet at a given one."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket

from tests.leftovers import WORKER, WORKERS

# Below those that the kernel deals out by itself: one of them may be another socket's before a job opens it.
# Every worker has its own share, for the same reason.
_OURS = range(12_000 + WORKER, 32_000, WORKERS)
_PORTS = itertools.cycle(random.SystemRandom().sample(_OURS, len(_OURS)))


def free_port() -> int:
    """Return a port that is free, and that no call of this session before has given."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):  # taken: the next one
            probe.bind(("", port))
            return port
