"""What ranks in network namespaces do: join one world after another and reduce exactly, or until a peer is lost."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune.errors import RingtuneError
from ringtune.session import Session
from tests.jobs.cases import common
from tests.jobs.cases import step_schedule as step_schedule_cases

COUNTS = (0, 1, 1001, (1 << 18) + 3)  # the last: 1 MiB and 3 elements of float32
DTYPES = ("float32", "bfloat16", "int64", "uint8")
_CLONE_NEWNET = 0x40000000


def enter(space: str) -> None:
    """Move this thread, and all that it starts from now on, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12
    with open(f"/run/netns/{space}", "rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")


def _join(space: str, environ: dict[str, str]) -> None:
    enter(space)
    common.open_session({"RINGTUNE_START_TIMEOUT": "120", **environ})


def reduce_in(space: str, environ: dict[str, str]) -> dict[str, Any]:
    """Join a world in a namespace, reduce exactly, leave; return transports, fingerprints and windows of steps."""
    _join(space, environ)
    session = Session.current()
    assert session is not None
    transports = sorted(set(session.transports) - {"self"})
    digests = [
        common.allreduce(dtype=dtype, count=count, op=op)
        for dtype in DTYPES
        for count in COUNTS
        for op in (hvd.Sum, hvd.Average, hvd.Max)
    ]
    digests.append(common.broadcast(dtype="float32", count=1001, root=hvd.size() - 1))
    digests.append(common.allgather(dtype="float32", rows=[0, 3, 1, 2, 7], width=3))
    windows = step_schedule_cases.steady(tensors=5)
    found = {"size": hvd.size(), "rank": hvd.rank(), "transports": transports, "digests": digests, "windows": windows}
    common.close_session()
    return found


def reduce_until_lost(space: str, environ: dict[str, str]) -> tuple[str, float]:
    """Reduce until a peer is lost; return the error's type and the moment on the machine's monotonic clock.

    It says ``ready`` on stderr once everybody reduces.
    """
    _join(space, environ)
    tensor = torch.ones(4 << 20)
    try:
        hvd.allreduce(tensor, op=hvd.Max, name="big")
        os.write(2, b"ready\n")
        while True:
            hvd.allreduce(tensor, op=hvd.Max, name="big")
    except RingtuneError as error:
        return type(error).__name__, time.monotonic()
