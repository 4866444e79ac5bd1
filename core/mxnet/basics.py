"""Joining and leaving a job."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Sequence
from typing import Any

import mxnet as mx

from ringtune import numpy as front
from ringtune import session
from ringtune.bootstrap.departure import exit_code
from ringtune.common import job
from ringtune.common import process_sets as sets
from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.mxnet.library import engine
from ringtune.numpy.collectives import handles
from ringtune.session import Session


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job; a second call without `shutdown` between only registers sets that are not registered yet.

    Args:
        comm: Accepted for Horovod's sake: None, a list of all ranks, or an mpi4py communicator of all ranks.
        process_sets: Sets to register, the same on all ranks, numbered 1, 2 ... in this order; ``"dynamic"`` lets
            `add_process_set` and `remove_process_set` work later.

    Raises:
        ConfigError: A variable of the environment is invalid; the message names it.
        InitializationFailed: Not all ranks came, the message names the missing ones; or one was lost meanwhile.
        NotSupported: The communicator does not hold all ranks.
        InvalidArgument: A set is a duplicate; this process was forked from one that is in a job; or MXNet's library
            has no engine that takes collectives.
    """
    engine()
    job.join_job(comm, process_sets, handles.reset, _joined)


def _joined(opened: Session) -> None:
    opened.follow_programs()
    atexit.unregister(_settle_at_exit)
    atexit.register(_settle_at_exit)  # before the session's own end


def shutdown() -> None:
    """Leave the job, once what was asked for is done. Idempotent."""
    settle()
    session.shutdown()
    handles.reset()


def join() -> int:
    """Wait until all ranks have reached this point; meanwhile contribute neutral elements to what the others reduce.

    Returns:
        The global rank that came last, the same on all ranks.
    """
    settle()
    return sets.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have reached this point, and what they have asked for is done."""
    settle()
    front.barrier(process_set)


def settle() -> None:
    """Wait for what is in MXNet's engine: it may need the job. What it fails with, its arrays tell."""
    if session.is_initialized():
        with contextlib.suppress(mx.base.MXNetError):
            mx.nd.waitall()


def _settle_at_exit() -> None:
    if exit_code() is None:  # after an exception, other ranks may never come to what was started
        settle()
