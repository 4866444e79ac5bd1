"""Horovod's basics: start, stop, rank and size, what is built."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ringtune import session
from ringtune.bootstrap import placement, rank_process
from ringtune.common import job
from ringtune.common import process_sets as sets
from ringtune.common.job import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ringtune.common.process_sets import ProcessSet
from ringtune.common.rank_info import (
    cross_rank,
    cross_size,
    is_homogeneous,
    local_rank,
    local_size,
    rank,
    size,
    start_timeline,
    stop_timeline,
)
from ringtune.config import Config
from ringtune.session import Session, is_initialized
from ringtune.torch import handles

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


_meetings = itertools.count()  # the ranks call init() equally often


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job; a second call without `shutdown` between only registers sets that are not registered yet.

    The job is the one that the launcher's variables describe; where there are none, the world of torch.distributed if
    the process is in one; else the process is a job of its own.

    Args:
        comm: Accepted for Horovod's sake: None, a list of all ranks, or an mpi4py communicator of all ranks.
        process_sets: Sets to register, the same on all ranks, numbered 1, 2 ... in this order; ``"dynamic"`` lets
            `add_process_set` and `remove_process_set` work later.

    Raises:
        ConfigError: A variable of the environment is invalid; the message names it.
        InitializationFailed: Not all ranks came, the message names the missing ones; or one was lost meanwhile.
        NotSupported: The communicator does not hold all ranks.
        InvalidArgument: A set is a duplicate; the runtime is up, the other sets are registered. Or this process was
            forked from one that is in a job.
    """
    job.join_job(comm, process_sets, handles.reset, _compute_threads, _from_torch)


def _compute_threads(opened: Session) -> None:
    opened.set_compute_threads(torch.get_num_threads())


def _from_torch() -> Config | None:
    """Return the settings of a rank of torch.distributed's world that no launcher has placed; None for any other.

    ``torch.multiprocessing.spawn`` starts such ranks: they know their rank from ``init_process_group`` alone.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    environ = rank_process.own_environment(os.environ)
    config = Config.from_environ(environ)
    if config.worker is not None or placement.is_placed(config, environ):
        return None
    from ringtune.torch.distributed.members import meet_in_world

    return meet_in_world(f"ringtune/init/{next(_meetings)}", config)


def shutdown() -> None:
    """Leave the job: pending operations fail, handles are forgotten. Idempotent."""
    session.shutdown()
    handles.reset()


class HorovodBasics:
    """Horovod's object behind these functions; scripts reach it as ``hvd.mpi_ops._basics``.

    Args:
        pkg_path: Accepted for Horovod's sake, as are the others: there is no library to load.
    """

    Average, Sum, Adasum, Min, Max, Product = range(6)

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        del pkg_path, args

    init = staticmethod(init)
    shutdown = staticmethod(shutdown)
    is_initialized = staticmethod(is_initialized)
    rank = staticmethod(rank)
    size = staticmethod(size)
    local_rank = staticmethod(local_rank)
    local_size = staticmethod(local_size)
    cross_rank = staticmethod(cross_rank)
    cross_size = staticmethod(cross_size)
    is_homogeneous = staticmethod(is_homogeneous)
    start_timeline = staticmethod(start_timeline)
    stop_timeline = staticmethod(stop_timeline)
    mpi_threads_supported = staticmethod(mpi_threads_supported)
    mpi_enabled = staticmethod(mpi_enabled)
    gloo_enabled = staticmethod(gloo_enabled)
    mpi_built = staticmethod(mpi_built)
    gloo_built = staticmethod(gloo_built)
    nccl_built = staticmethod(nccl_built)
    ddl_built = staticmethod(ddl_built)
    ccl_built = staticmethod(ccl_built)
    cuda_built = staticmethod(cuda_built)
    rocm_built = staticmethod(rocm_built)

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        """Return the global ranks of every registered set by number."""
        return sets.ids_and_ranks()
