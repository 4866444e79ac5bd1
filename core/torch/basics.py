"""Horovod's basics: start, stop, who am I, what is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringtune import session
from ringtune.common.process_sets import ProcessSet
from ringtune.errors import NotSupported, RingtuneError
from ringtune.session import is_initialized, require
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


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job; a second call without `shutdown` between does nothing.

    Args:
        comm: Accepted for Horovod's sake: None or a list of all ranks.
        process_sets: None, an empty list, or ``"dynamic"``.

    Raises:
        ConfigError: The environment makes no sense; the message says which variable.
        Timeout: Not all ranks came; the message names the missing ones.
        NotSupported: A communicator or process sets were given.
    """
    if process_sets and not (isinstance(process_sets, str) and process_sets.lower() == "dynamic"):
        raise NotSupported("init(process_sets=...): this version knows only the set of all ranks")
    if comm is not None and not isinstance(comm, (list, tuple)):
        raise NotSupported("init(comm=...): this version takes no communicator; call init() without it")
    if not is_initialized():
        handles.reset()
        opened = session.init()
        if comm and list(comm) != list(range(opened.size)):
            session.shutdown()
            raise NotSupported(f"init(comm={list(comm)}): only all ranks 0 to {opened.size - 1} together, or None")


def shutdown() -> None:
    """Leave the job: pending operations fail, handles are forgotten. Idempotent."""
    session.shutdown()
    handles.reset()


def rank() -> int:
    """Return this process's rank."""
    return require().rank


def size() -> int:
    """Return the number of ranks."""
    return require().size


def local_rank() -> int:
    """Return this process's rank among those of its host."""
    return require().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return require().local_size


def cross_rank() -> int:
    """Return this host's position among the hosts that have this local rank."""
    return require().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have this local rank."""
    return require().cross_size


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of ranks."""
    return require().homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record this rank's part of the timeline; rank 0 merges all parts into the file at the end.

    Raises:
        NotInitialized: Before `init`.
        TraceIoError: The part cannot be written.
    """
    require().start_timeline(file_path, mark_cycles=mark_cycles)


def stop_timeline() -> None:
    """Stop recording; without effect when nothing records."""
    require().stop_timeline()


def mpi_threads_supported() -> bool:
    """Raise: ringtune does not use MPI.

    Raises:
        ValueError: Always, as Horovod does without MPI.
    """
    require()
    raise ValueError("Horovod MPI is not enabled; ringtune does not use MPI")


def mpi_enabled() -> bool:
    """Return False: ringtune does not use MPI."""
    return False


def gloo_enabled() -> bool:
    """Return False: ringtune has a runtime of its own in Gloo's place."""
    return False


def mpi_built() -> bool:
    """Return False: ringtune does not use MPI."""
    return False


def gloo_built() -> bool:
    """Return False: ringtune has a runtime of its own in Gloo's place."""
    return False


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
