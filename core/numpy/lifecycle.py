"""Joining and leaving a job without a framework, and what has no array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringtune import session
from ringtune.common import job
from ringtune.common import process_sets as sets
from ringtune.common.handles import Pending
from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.numpy.checked_calls import checked
from ringtune.numpy.collectives import handles
from ringtune.operations import Barrier


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
        InvalidArgument: A set is a duplicate; or this process was forked from one that is in a job.
    """
    job.join_job(comm, process_sets, handles.reset, lambda _: None)


def shutdown() -> None:
    """Leave the job: pending operations fail, handles are forgotten. Idempotent."""
    session.shutdown()
    handles.reset()


@checked
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have reached this point."""
    number = sets.number_of(process_set)
    now = session.require()
    name = sets.wire_name("barrier", "noname", number)
    handles.at_once(lambda: handles.register(Pending([now.submit(Barrier(name, number))], lambda: None)))


def join() -> int:
    """Wait until all ranks have reached this point; meanwhile contribute neutral elements to what the others reduce.

    Returns:
        The global rank that came last, the same on all ranks.
    """
    return sets.join()
