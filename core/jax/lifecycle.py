"""Joining and leaving a job."""

from __future__ import annotations

from collections.abc import Sequence

from ringtune import numpy as front
from ringtune.common.process_sets import ProcessSet
from ringtune.errors import InvalidArgument
from ringtune.jax.trees import is_traced


def init(process_sets: Sequence[ProcessSet] | None = None) -> None:
    """Join the job; a second call without `shutdown` between only registers sets that are not registered yet.

    Args:
        process_sets: Sets to register, the same on all ranks, numbered 1, 2 ... in this order.

    Raises:
        ConfigError: A variable of the environment is invalid; the message names it.
        Timeout: Not all ranks came; the message names the missing ones.
        InvalidArgument: A set is a duplicate; or this process was forked from one that is in a job.
    """
    front.init(process_sets)


def shutdown() -> None:
    """Leave the job: what is pending fails. Programs hold the number of ranks they were compiled for. Idempotent."""
    front.shutdown()


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
