"""ringtune as a backend of ``torch.distributed``: ``dist.init_process_group("ringtune")`` after importing this module.

It serves tensors of the CPU and of GPUs. DDP, FSDP2 and ZeroRedundancyOptimizer then reduce with ringtune's runtime,
with its timelines, statistics and tuning.
"""

from __future__ import annotations

import torch.distributed as dist

from ringtune.config import Config
from ringtune.torch.distributed.creation import create_group, monitored_barrier
from ringtune.torch.distributed.group import ProcessGroupRingtune
from ringtune.torch.distributed.hook import ddp_hook
from ringtune.torch.graph_breaks import leave_graphs

__all__ = ["BACKEND", "ProcessGroupRingtune", "bucket_cap_mb", "ddp_hook", "monitored_barrier"]

BACKEND = "ringtune"


def bucket_cap_mb(otherwise: int = 25) -> int:
    """Return ``RINGTUNE_BUCKET_CAP_MB``, for ``DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb())``.

    Args:
        otherwise: The script's own size in MiB, where the variable is not set; torch's is 25.

    Raises:
        ConfigError: A variable cannot be understood.
    """
    asked = Config.from_environ().bucket_cap_mb
    return otherwise if asked is None else asked


if BACKEND.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu", "cuda"])
leave_graphs(__name__)
