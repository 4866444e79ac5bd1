"""Tensors on GPUs: their devices, and waits of torch's streams for their results.

The runtime copies a tensor to the host after the work queued in torch's current stream, and the result back; `join`
makes the then current stream wait for the copy, so that no call waits for a GPU. Torch's caching allocator reuses
memory in the order of the stream that allocated it. The runtime's streams need no ``record_stream``: the runtime keeps
every tensor until its operation is done, and the current stream then waits for the copies, or for the transfers from
GPU to GPU. The current stream needs ``record_stream`` for memory that another stream has allocated.
"""

from __future__ import annotations

import torch

from ringtune import session
from ringtune.operations import HOST, Device
from ringtune.session import Session


def device_of(tensor: torch.Tensor) -> Device:
    """Return a tensor's device for the runtime."""
    if tensor.is_cpu:
        return HOST
    return tensor.device.index, torch.cuda.current_stream(tensor.device).cuda_stream


def join(ticket: int, *tensors: torch.Tensor) -> None:
    """Make torch's current stream wait for the result of a finished operation; nothing for tensors on the CPU.

    Args:
        ticket: Of the operation.
        tensors: Memory that it wrote or read, all on one device.

    Raises:
        DeviceError: The driver refuses.
    """
    if tensors[0].is_cpu:
        return
    stream = torch.cuda.current_stream(tensors[0].device)
    session.require().join_stream(ticket, stream.cuda_stream)
    for tensor in tensors:
        tensor.record_stream(stream)


def deliver(ticket: int, dtype: torch.dtype, sent: torch.Tensor, of: Session | None = None) -> torch.Tensor:
    """Return the result of a finished allgather or alltoall of tensors on a GPU as a tensor there.

    Args:
        ticket: Of the operation.
        dtype: Of the elements.
        sent: This rank's contribution; later work of its GPU's current stream sees the result.
        of: Session of the operation; the current one if missing.

    Raises:
        DeviceError: The driver refuses.
    """
    of = session.require() if of is None else of
    stream = torch.cuda.current_stream(sent.device)
    result = torch.empty(of.gathered_shape(ticket), dtype=dtype, device=sent.device)
    of.deliver(ticket, result.data_ptr(), stream.cuda_stream)
    sent.record_stream(stream)  # the runtime may still read it; the stream waits for that
    return result
