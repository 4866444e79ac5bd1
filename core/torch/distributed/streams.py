"""Waits between the works of a process group and torch's streams, as with NCCL's backend.

Every GPU has one *stream of works*. When the result of an operation is on its way, that stream waits for it and moves
it into the outputs; an event there is the *arrival*, for which streams of the program wait. The host waits until the
result is on its way, never for the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ringtune.session import Session

_lock = threading.Lock()
_streams: dict[torch.device, Any] = {}


def gpu_of(tensors: Iterable[Any]) -> torch.device | None:
    """Return the GPU on which the first of the tensors among these is; None on the CPU."""
    first = next((one for one in tensors if isinstance(one, torch.Tensor)), None)
    return None if first is None or first.is_cpu else first.device


def future_devices(gpu: torch.device | None) -> list[torch.device] | None:
    """Return what a future of results on that GPU is made with: it then knows their streams."""
    return None if gpu is None else [gpu]


@contextmanager
def working_on(gpu: torch.device | None) -> Iterator[None]:
    """Make the GPU's stream of works this thread's current one; nothing without a GPU."""
    if gpu is None:
        yield
        return
    with _lock:
        stream = _streams.get(gpu)
        if stream is None:
            stream = _streams[gpu] = torch.cuda.Stream(gpu)
    with torch.cuda.stream(stream):
        yield


def join(session: Session, tickets: Iterable[int], gpu: torch.device) -> None:
    """Make the current stream wait for the results of finished operations.

    Raises:
        DeviceError: The driver refuses.
    """
    stream = torch.cuda.current_stream(gpu).cuda_stream
    for ticket in tickets:
        session.join_stream(ticket, stream)


class Arrival:
    """The moment at which a work's results are there: after what the current stream holds now.

    Args:
        gpu: Where the results are.
        tensors: Memory that the stream uses; torch's allocator gives it out again only when the stream is done with it.
    """

    def __init__(self, gpu: torch.device, tensors: Iterable[Any]) -> None:
        self._gpu = gpu
        stream = torch.cuda.current_stream(gpu)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and not tensor.is_cpu:
                tensor.record_stream(stream)
        self._event = torch.cuda.Event()
        self._event.record(stream)

    def await_here(self) -> None:
        """Make this thread's current stream wait for it."""
        torch.cuda.current_stream(self._gpu).wait_event(self._event)

    def reached(self) -> bool:
        """Return whether the GPU is there."""
        return bool(self._event.query())
