"""ringtune as a backend of ``torch.distributed``: ``dist.init_process_group("ringtune")``.

It serves tensors of the CPU and of GPUs. DDP, FSDP2 and ZeroRedundancyOptimizer then reduce with ringtune's runtime,
with its timelines, statistics and tuning.
"""

from __future__ import annotations

import torch.distributed as dist

from ringtune.autoload import BACKEND, register_backend
from ringtune.torch.distributed.creation import monitored_barrier
from ringtune.torch.distributed.group import ProcessGroupRingtune
from ringtune.torch.distributed.hook import ddp_hook
from ringtune.torch.graph_breaks import leave_graphs

__all__ = ["BACKEND", "ProcessGroupRingtune", "ddp_hook", "monitored_barrier"]

register_backend(dist.distributed_c10d)  # a torch older than 2.5 loads no entry points
leave_graphs(__name__)
