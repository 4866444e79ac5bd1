"""The MPIs with which tests start jobs: the one that is installed, and one beside this Python."""

from __future__ import annotations

import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

from tests.conftest import find_tool


def mpi(where: str) -> tuple[list[str], dict[str, str]]:
    """Return how MPI starts a job, and the variables of its ranks."""
    if where == "installed":
        # mpi4py would take the one beside this Python.
        library = find_library("mpi")
        return [find_tool("mpi")], {"MPI4PY_LIBMPI": library} if library else {}
    beside, own = Path(sys.prefix, "bin", "mpiexec.hydra"), Path(sys.prefix, "lib", "libmpi.so.12")
    if not (beside.exists() and own.exists()):
        pytest.skip("no MPI beside this Python (pip install mpich, or impi-rt)")
    return [str(beside)], {"MPI4PY_LIBMPI": str(own), "LD_LIBRARY_PATH": str(own.parent)}
