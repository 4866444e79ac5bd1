"""Joining and leaving a job."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Sequence
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from ringtune import numpy as front
from ringtune import session
from ringtune.bootstrap.departure import exit_code
from ringtune.common.process_sets import ProcessSet
from ringtune.errors import InvalidArgument
from ringtune.jax.trees import is_traced


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job; arguments and errors are those of `ringtune.numpy.init`."""
    front.init(comm, process_sets)
    session.require().follow_programs()
    atexit.unregister(_settle_at_exit)
    atexit.register(_settle_at_exit)  # before the session's own end


def shutdown() -> None:
    """Leave the job: what is pending fails. Programs hold the number of ranks they were compiled for. Idempotent."""
    settle()
    front.shutdown()


def settle() -> None:
    """Wait for the programs that have been started: they need the job. What they fail with, their results tell."""
    if session.is_initialized():
        with contextlib.suppress(JaxRuntimeError):
            jax.effects_barrier()


def join() -> int:
    """Wait until all ranks have reached this point; meanwhile contribute neutral elements to what the others reduce.

    Returns:
        The global rank that came last, the same on all ranks.

    Raises:
        InvalidArgument: Inside jit, grad or vmap.
    """
    if is_traced(()):
        raise InvalidArgument("join() inside a program that is being traced: call it outside of jit, grad and vmap")
    return front.join()


def _settle_at_exit() -> None:
    if exit_code() is None:  # after an exception, other ranks may never come to what was started
        settle()
