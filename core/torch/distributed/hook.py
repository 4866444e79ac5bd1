"""A communication hook for DDP whose process group stays Gloo or NCCL: ``model.register_comm_hook(None, ddp_hook)``."""

# No `from __future__ import annotations`: DDP compares the hook's annotations with its own classes.
from typing import Any

import torch
import torch.distributed as dist

from ringtune import session
from ringtune.operations import Allreduce
from ringtune.torch.arguments import Average
from ringtune.torch.distributed.works import Work
from ringtune.torch.handles import dtype_number


def ddp_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients with ringtune's runtime instead of the model's process group.

    Args:
        state: Ignored.
        bucket: DDP's bucket; its memory is reduced in place.

    Returns:
        A future of the bucket's memory.

    Raises:
        NotInitialized: ``ringtune.torch.init()`` has not been called.
    """
    now = session.require()
    buffer = bucket.buffer()
    address = buffer.data_ptr()
    name = f"ddp.{bucket.index()}.{buffer.numel()}"
    ticket = now.submit_allreduce(Allreduce(name, address, address, (buffer.numel(),), dtype_number(buffer), Average))
    future: torch.futures.Future[Any] = Work(now, [ticket], [buffer], keep=buffer).get_future()
    return future.then(lambda done: done.value()[0])
