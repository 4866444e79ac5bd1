"""Any Python object from one rank to all, or from all to all: pickled, as bytes."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from ringtune import session
from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.numpy.checked_calls import checked
from ringtune.numpy.collectives import allgather, broadcast_


@checked
def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on all ranks.

    Args:
        obj: What is sent; ignored except on the root.
        root_rank: Rank that sends.
        name: Name by which ranks match the operation.
        process_set: The ranks that take part; the root is a global rank.

    Raises:
        RuntimeFailure: The operation failed.
    """
    name = name or "broadcast_object"
    here = session.require().rank == root_rank
    payload = _pickled(obj) if here else np.empty(0, dtype=np.uint8)
    size = broadcast_(np.array([payload.size], dtype=np.int64), root_rank, f"{name}.sz", process_set)
    if not here:
        payload = np.empty(int(size[0]), dtype=np.uint8)
    broadcast_(payload, root_rank, f"{name}.t", process_set)
    return obj if here else pickle.loads(payload.tobytes())


@checked
def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks of the set, in order of ranks."""
    name = name or "allgather_object"
    payload = _pickled(obj)
    sizes = allgather(np.array([payload.size], dtype=np.int64), f"{name}.sz", process_set)
    joined = allgather(payload, f"{name}.t", process_set)
    return [pickle.loads(part.tobytes()) for part in np.split(joined, np.cumsum(sizes)[:-1])]


def _pickled(obj: Any) -> np.ndarray[Any, Any]:
    """Return the bytes of an object, lambdas and classes of the script included."""
    return np.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=np.uint8)
