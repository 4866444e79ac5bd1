"""Records jobs whose collectives ringtune does not carry: DDP, FSDP2, ZeRO, or a script's own, on Gloo, NCCL or MPI.

Nothing of the script changes. torch loads `ringtune.autoload` at the end of ``import torch``; where a timeline is asked
for, ``init_process_group`` then opens a session of ringtune beside the group, through the group's own store: for its
clocks, run folder and timeline, and for nothing that the script communicates.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from ringtune import session
from ringtune.bootstrap import rank_process
from ringtune.config import Config
from ringtune.errors import RingtuneError
from ringtune.torch import part_settings
from ringtune.torch.distributed import BACKEND
from ringtune.torch.distributed.members import meet_in_world
from ringtune.torch.graph_breaks import leave_graphs
from ringtune.torch.recorder import collectives, phases

_handles: list[Any] = []
"""What the recorder has put into torch while it watches; each has ``remove()``."""


def join() -> None:
    """Record this rank of torch.distributed, in the session that the script has opened or in one opened here.

    The runtime itself records collectives of a world of ringtune's own. A failure costs the recording and nothing else.
    A process that a rank has started is no rank of the job, and would write over that rank's part.
    """
    if rank_process.inherits_outputs(os.environ):
        return
    carried = BACKEND in str(dist.get_backend_config())
    if not carried and not session.is_initialized():
        try:
            config = meet_in_world("ringtune/recorder", Config.from_environ())
            session.init(config).set_compute_threads(torch.get_num_threads())
            part_settings.tell()
        except RingtuneError as error:
            session.warn(f"this job is not recorded: {error}")
            return
    if not _handles:
        leave_graphs(collectives.__name__)
        _handles.extend((*(() if carried else collectives.watch()), *phases.watch()))


def leave() -> None:
    """Record no longer, and take out what `join` has put into torch and into models; the session stays open."""
    while _handles:
        _handles.pop().remove()
