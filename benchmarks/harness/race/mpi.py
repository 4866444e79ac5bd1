"""One rank of an MPI contender, started by that MPI's own ``mpiexec`` as ``python -m ... JOIN``.

Needs mpi4py and NumPy alone. Tensors are summed as mpi4py's users do it: in place on NumPy arrays, one blocking
``Allreduce`` per tensor; other collectives read and write arrays that are at hand.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from ringtune.benchmarks.harness.race.bursts import Call, Contest, SumContest, in_turn
from ringtune.benchmarks.harness.race.exchanges import Exchange, ExchangeContest
from ringtune.benchmarks.harness.race.patterns import Array, Buffers, Task
from ringtune.benchmarks.harness.race.rank import Seat, Unsupported, serve


def open_blocking(task: Task) -> Contest:
    """Returns the contest of one blocking ``Allreduce`` per tensor.

    Raises:
        Unsupported: this MPI has no sum for the dtype.
    """
    reduce = MPI.COMM_WORLD.Allreduce
    try:
        reduce(MPI.IN_PLACE, _message(np.zeros(2, task.storage), task.dtype))
    except MPI.Exception as error:
        raise Unsupported(f"this MPI has no sum of {task.dtype}: {error}") from error
    buffers = Buffers(task)
    calls = [partial(reduce, MPI.IN_PLACE, _message(array, task.dtype)) for array in buffers.arrays]
    return SumContest(buffers, in_turn(calls))


def open_exchange(task: Task) -> Contest:
    """Returns the contest of a blocking collective other than allreduce.

    Raises:
        Unsupported: this MPI has no sum for the dtype.
    """
    world, exchange = MPI.COMM_WORLD, Exchange(task)
    given, received = exchange.given, exchange.received
    # Only sums need to know what bfloat16 is.
    summed = [_message(array, task.dtype) for array in (given, received)] if task.collective == "reducescatter" else []
    calls: dict[str, Call] = {
        "broadcast": partial(world.Bcast, given, 0),
        "allgather": partial(world.Allgather, given, received),
        "reducescatter": partial(world.Reduce_scatter_block, *summed),
        "alltoall": partial(world.Alltoall, given, received),
        "barrier": world.Barrier,
    }
    call = calls[task.collective]
    try:
        call()
    except MPI.Exception as error:
        raise Unsupported(f"this MPI has no {task.collective} of {task.dtype}: {error}") from error
    return ExchangeContest(exchange, call)


def _message(array: Array, dtype: str) -> Any:
    if dtype != "bfloat16":
        return array
    if MPI.BFLOAT16_T == MPI.DATATYPE_NULL:
        raise Unsupported("this MPI has no bfloat16")
    return [array, MPI.BFLOAT16_T]


def main(join: str) -> None:
    """Runs this rank."""
    world = MPI.COMM_WORLD
    about = " ".join(MPI.Get_library_version().replace("\0", " ").split())[:80]
    serve(
        Seat(join, world.Get_rank(), world.Get_size(), about), {"mpi": open_blocking, "mpi-collectives": open_exchange}
    )


if __name__ == "__main__":
    main(sys.argv[1])
