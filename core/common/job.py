"""What is built, the same for the front ends of all frameworks."""

from __future__ import annotations

from ringtune.errors import RingtuneError
from ringtune.session import is_initialized, require


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
    """Return whether a job runs: ringtune's runtime stands for Gloo, which Horovod chooses at `init`."""
    return is_initialized()


def mpi_built() -> bool:
    """Return False: ringtune does not use MPI."""
    return False


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
