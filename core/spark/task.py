"""A task of a barrier stage as a rank. It runs in Spark's Python worker, on an executor."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

from ringtune.engines import calls, ranks
from ringtune.engines.ranks import EngineJob, Meeting
from ringtune.errors import InvalidArgument


def get_available_devices() -> list[str]:
    """Return the addresses of the GPUs that Spark gave to this task; empty where it gave none.

    Raises:
        InvalidArgument: This is no task of Spark's.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise InvalidArgument("get_available_devices(): call it in the function that ringtune.spark.run calls")
    gpus = context.resources().get("gpu")
    return list(gpus.addresses) if gpus is not None else []


def body(job: EngineJob, packed: bytes, captures: bool) -> Callable[[Iterator[Any]], Iterator[calls.Answer]]:
    """Return what a partition of the barrier stage does: be a rank, make the call, give its answer.

    Args:
        job: The job.
        packed: The call.
        captures: Whether the answer shall hold what the call writes.
    """

    def be_rank(_: Iterator[Any]) -> Iterator[calls.Answer]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        rank = context.partitionId()
        # Executors of one machine may have addresses of their own: its name says which ranks can share memory.
        addresses = [_host_of(info.address) for info in context.getTaskInfos()]
        meeting = ranks.serve(job, addresses) if rank == 0 else None
        place = (meeting.store, meeting.master) if meeting is not None else None
        told = [json.loads(text) for text in context.allGather(json.dumps([socket.gethostname(), place]))]
        store, master = told[0][1]
        own = ranks.variables(job, rank, [host for host, _ in told], Meeting(tuple(store), tuple(master)))
        yield calls.answer(job, own, packed, captures=captures)

    return be_rank


def _host_of(address: str) -> str:
    """Return the host of an executor's ``host:port``."""
    return address.rpartition(":")[0].strip("[]") or address
