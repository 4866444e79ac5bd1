"""A communication hook for DDP whose process group stays Gloo or NCCL: ``model.register_comm_hook(None, ddp_hook)``."""

# No `from __future__ import annotations`: DDP compares the hook's annotations with its own classes.
from typing import Any

import torch
import torch.distributed as dist

from ringtune import session
from ringtune.errors import InvalidArgument
from ringtune.operations import Allreduce
from ringtune.torch.arguments import Average
from ringtune.torch.compression import Compression, wire_number, wished
from ringtune.torch.devices import device_of
from ringtune.torch.distributed.works import Work
from ringtune.torch.handles import dtype_number
from ringtune.torch.steps import communicated


def ddp_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients with ringtune's runtime instead of the model's process group.

    Args:
        state: None (then ``RINGTUNE_COMPRESSION`` counts), or `Compression.none`, `.fp16` or `.bf16`: what the bucket
            travels as. (For PowerSGD use torch's
            own ``powerSGD_hook``, which runs on the backend ``ringtune`` too.)
        bucket: DDP's bucket; its memory is reduced in place.

    Returns:
        A future of the bucket's memory.

    Raises:
        NotInitialized: ``ringtune.torch.init()`` has not been called.
        InvalidArgument: The compression keeps state for every parameter, or is one of the caller's own. Or the job is
            another one than torch.distributed's world: the weights of its ranks would differ.
    """
    now = session.require()
    if now.size != dist.get_world_size():
        raise InvalidArgument(
            f"ddp_hook: torch.distributed has {dist.get_world_size()} ranks, ringtune's job {now.size}: start both the "
            "same way, or call hvd.init() after init_process_group()"
        )
    communicated()
    buffer = bucket.buffer()
    address = buffer.data_ptr()
    name = f"ddp.{bucket.index()}.{buffer.numel()}"
    wire = _wire_of(wished(now.config.compression) if state is None else state)
    number = dtype_number(buffer)
    device = device_of(buffer)
    ticket = now.submit(Allreduce(name, address, address, (buffer.numel(),), number, Average, wire=wire, device=device))
    future: torch.futures.Future[Any] = Work(now, [ticket], [buffer], keep=buffer).get_future()
    return future.then(lambda done: done.value()[0])


def _wire_of(compression: Any) -> int:
    """Return the number of the dtype to travel as, -1: the bucket's own."""
    wire = wire_number(compression, Average)
    if wire == -1 and compression is not Compression.none:
        raise InvalidArgument(
            f"ddp_hook: {compression!r} cannot be used here, expected None, Compression.fp16 or Compression.bf16"
        )
    return wire
