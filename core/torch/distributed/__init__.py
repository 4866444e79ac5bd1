"""ringtune as a backend of ``torch.distributed``: ``dist.init_process_group("ringtune")``.

It serves tensors of the CPU and of GPUs. DDP, FSDP2 and ZeroRedundancyOptimizer then reduce with ringtune's runtime,
with its timelines, statistics and tuning.
"""

from __future__ import annotations

import torch.distributed as dist

from ringtune.torch.distributed.creation import create_group, monitored_barrier
from ringtune.torch.distributed.group import ProcessGroupRingtune
from ringtune.torch.distributed.hook import ddp_hook
from ringtune.torch.graph_breaks import leave_graphs

__all__ = ["BACKEND", "ProcessGroupRingtune", "ddp_hook", "monitored_barrier"]

BACKEND = "ringtune"

if BACKEND.upper() not in dist.Backend._plugins:  # a torch older than 2.5 does not load `ringtune.autoload`
    dist.Backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu", "cuda"])
leave_graphs(__name__)
