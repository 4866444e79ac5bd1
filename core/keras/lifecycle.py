"""Starting and stopping with Keras, whatever its backend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ringtune import session
from ringtune.common import job
from ringtune.common.process_sets import ProcessSet
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
        InvalidArgument: A set is a duplicate; or this process was forked from one that is in a job.
    """
    job.join_job(comm, process_sets, handles.reset, _joined)


def _joined(opened: Session) -> None:
    opened.follow_programs()
    opened.set_compute_threads(os.cpu_count() or 1)


def shutdown() -> None:
    """Leave the job: pending operations fail. Idempotent."""
    session.shutdown()
    handles.reset()
