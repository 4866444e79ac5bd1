"""Joining and leaving the job, and what is built: the same for the front ends of all frameworks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ringtune import session
from ringtune.common import process_sets as sets
from ringtune.common.communicators import require_all_ranks
from ringtune.common.process_sets import ProcessSet
from ringtune.config import Config
from ringtune.errors import InitializationFailed, InvalidArgument, RingtuneError, RuntimeFailure
from ringtune.session import Session, is_initialized, require


def join_job(
    comm: Any,
    process_sets: Sequence[ProcessSet] | str | None,
    forget: Callable[[], None],
    joined: Callable[[Session], None],
    config: Callable[[], Config | None] = lambda: None,
) -> None:
    """Join the job; a second call without leaving between only registers sets that are not registered yet.

    Args:
        comm: Accepted for Horovod's sake: None, a list of all ranks, or an mpi4py communicator of all ranks.
        process_sets: Sets to register, the same on all ranks, numbered 1, 2 ... in this order; ``"dynamic"`` lets
            `add_process_set` and `remove_process_set` work later.
        forget: Drops the front end's handles of an earlier job.
        joined: Called with the session once the ranks have met.
        config: Returns the settings; None: those of the environment.

    Raises:
        ConfigError: A variable of the environment is invalid; the message names it.
        InitializationFailed: Not all ranks came, the message names the missing ones; or one was lost meanwhile.
        NotSupported: The communicator does not hold all ranks.
        InvalidArgument: A set is a duplicate; the runtime is up, the other sets are registered. Or this process was
            forked from one that is in a job.
    """
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise InvalidArgument(f'init(process_sets={process_sets!r}): expected a list of sets or "dynamic"')
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        process_sets = None
    if not isinstance(process_sets, (list, tuple, type(None))):
        raise InvalidArgument(f"init(process_sets={process_sets!r}): expected a list of ProcessSets")
    for one in process_sets or ():
        if not isinstance(one, ProcessSet):
            raise InvalidArgument(f"init(process_sets=...): {one!r} is no ProcessSet")
    if is_initialized():
        require().require_home()
    else:
        forget()
        sets.unnamed.clear()
        try:
            opened = session.init(config())
        except RuntimeFailure as failure:
            raise InitializationFailed(f"Horovod initialization failed: {failure}") from None
        require_all_ranks(comm, opened)
        joined(opened)
    if process_sets:
        sets.register_all(_agreed(list(process_sets)))


def _agreed(wanted: list[ProcessSet]) -> list[ProcessSet]:
    """Return the sets that this rank registers, the same on all ranks.

    Communicators may differ between ranks (those of a split do): then every rank registers the sets of all ranks.
    """
    if all(one.mpi_comm is None for one in wanted):
        return wanted
    from ringtune.numpy.objects import allgather_object

    for one in wanted:
        if one.mpi_comm is not None and one.ranks is None:
            one._ranks = sorted(one.mpi_comm.allgather(require().rank))
    own = {tuple(one.ranks or ()): one for one in wanted}
    everywhere = allgather_object([one.ranks for one in wanted], "process_sets")
    agreed = dict.fromkeys(tuple(ranks) for lists in everywhere for ranks in lists)
    return [own.get(ranks) or ProcessSet(ranks) for ranks in agreed]


def mpi_threads_supported() -> bool:
    """Return True where MPI carries the data (``RINGTUNE_TRANSPORT=mpi``), which needs an MPI that allows threads.

    Raises:
        ValueError: It does not, as Horovod without MPI.
    """
    require()
    if mpi_enabled():
        return True
    raise ValueError("Horovod MPI is not enabled; ringtune does not use MPI")


def mpi_enabled() -> bool:
    """Return whether a job runs whose data MPI carries (``RINGTUNE_TRANSPORT=mpi``)."""
    now = session.state.current
    return now is not None and now.config.transport == "mpi"


def gloo_enabled() -> bool:
    """Return whether a job runs: ringtune's runtime stands for Gloo, whatever carries its data."""
    return is_initialized()


def mpi_built() -> bool:
    """Return whether MPI carries the data, or would in a job that this process began (``RINGTUNE_TRANSPORT=mpi``)."""
    return mpi_enabled() or os.environ.get("RINGTUNE_TRANSPORT") == "mpi"


def gloo_built() -> bool:
    """Return True: scripts ask this to know that no MPI is needed; ringtune's runtime stands for Gloo."""
    return True


def nccl_built() -> int:
    """Return NCCL's version code, 0 without NCCL."""
    from ringtune import native

    try:
        text = native.load().build_info().get("nccl", "")
    except RingtuneError:
        return 0
    return int(text) if text.isdigit() else 0


def ddl_built() -> bool:
    """Return False."""
    return False


def ccl_built() -> bool:
    """Return False."""
    return False


def cuda_built() -> bool:
    """Return whether tensors on CUDA devices are reduced without a copy through the host."""
    return nccl_built() > 0


def rocm_built() -> bool:
    """Return False."""
    return False
