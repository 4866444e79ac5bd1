"""One rank of the oneCCL contender, started by Intel MPI's ``mpiexec`` as ``python -m ... JOIN``.

Needs mpi4py (for rank and rendezvous), NumPy and the library that `make bench-peers` compiles from ``oneccl.cc``.
One blocking allreduce in place per tensor.
"""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from importlib import metadata
from pathlib import Path

from mpi4py import MPI

from ringtune.benchmarks.harness.race.bursts import Contest, SumContest, in_turn
from ringtune.benchmarks.harness.race.patterns import Buffers, Task
from ringtune.benchmarks.harness.race.rank import Seat, serve

LIBRARY = "ringtune_oneccl.so"
_ADDRESS_BYTES = 256
# ccl::datatype
_DTYPES = {"uint8": 1, "int32": 4, "int64": 6, "float16": 8, "float32": 9, "float64": 10, "bfloat16": 11}


def open_blocking(library: ctypes.CDLL, task: Task) -> Contest:
    """Returns the contest of one blocking allreduce per tensor."""
    buffers = Buffers(task)
    reduce = library.ringtune_oneccl_allreduce
    # Converted once, not in every call.
    reduce.argtypes, reduce.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), None
    dtype = ctypes.c_int(_DTYPES[task.dtype])
    calls = [
        partial(reduce, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(len(array)), dtype)
        for array in buffers.arrays
    ]
    return SumContest(buffers, in_turn(calls))


def _join_world(world: MPI.Comm) -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(sys.prefix) / "lib" / LIBRARY))
    address = ctypes.create_string_buffer(_ADDRESS_BYTES)
    if world.Get_rank() == 0:
        library.ringtune_oneccl_serve(address)
    library.ringtune_oneccl_join(world.bcast(address.raw), world.Get_size(), world.Get_rank())
    return library


def main(join: str) -> None:
    """Runs this rank."""
    world = MPI.COMM_WORLD
    library = _join_world(world)
    about = f"oneCCL {metadata.version('oneccl')}"
    seat = Seat(join, world.Get_rank(), world.Get_size(), about)
    serve(seat, {"oneccl": partial(open_blocking, library)})


if __name__ == "__main__":
    main(sys.argv[1])
