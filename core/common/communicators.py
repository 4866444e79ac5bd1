"""Communicators of mpi4py that scripts hand to ``init(comm=...)``, and the errors where they do not fit the job."""

from __future__ import annotations

import sys
from typing import Any

from ringtune import session
from ringtune.errors import NotSupported
from ringtune.session import Session


def require_all_ranks(comm: Any, opened: Session) -> None:
    """Leave the job again unless the caller's communicator holds all its ranks in their order.

    Args:
        comm: None, a list of all ranks (or an empty one), or an mpi4py communicator.
        opened: The session of this process.

    Raises:
        NotSupported: It holds others; the message says what it is.
    """
    if comm is None:
        return
    if isinstance(comm, (list, tuple)):
        if not comm or list(comm) == list(range(opened.size)):
            return
        what = f"init(comm={comm})"
    elif hasattr(comm, "Get_size"):
        rank, size = comm.Get_rank(), comm.Get_size()
        if (rank, size) == (opened.rank, opened.size):
            return
        what = f"init(comm=...): {another_mpi(size, opened.size) or f'this is rank {rank} of {size} there'}"
    else:
        what = f"init(comm={comm!r})"
    session.shutdown()
    raise NotSupported(f"{what}: expected all ranks 0 to {opened.size - 1} together, or None")


def another_mpi(size: int, ranks: int) -> str:
    """Return in words that mpi4py belongs to another MPI than the launcher, where a world of one process shows that.

    Args:
        size: Size of mpi4py's communicator.
        ranks: Ranks of the job.
    """
    if size != 1 or ranks == 1:
        return ""
    return (
        f"mpi4py sees a world of one process in a job of {ranks}: it was built for {_library()}, which did not start "
        "the job; install mpi4py for the launcher's MPI (MPICC=... pip install --no-binary=mpi4py mpi4py), or start "
        "the job by the mpirun of mpi4py's"
    )


def _library() -> str:
    mpi = sys.modules.get("mpi4py.MPI")  # it made the communicator, so it is loaded; loading it would start MPI
    if mpi is None:
        return "another MPI"
    return str(mpi.Get_library_version()).split("\n")[0].split(",")[0].strip("\0 ")
