"""Records jobs whose collectives ringtune does not carry: DDP, FSDP2, ZeRO, or a script's own, on Gloo, NCCL or MPI.

Nothing of the script changes. torch loads `ringtune.autoload` at the end of ``import torch``, which starts the recorder
in the jobs of ``ringtune record``. ``init_process_group`` then opens a session of ringtune beside the group, through
the group's own store: for its clocks, run folder and timeline, and for nothing that the script communicates.
"""

from __future__ import annotations

from ringtune.torch.graph_breaks import leave_graphs
from ringtune.torch.recorder import collectives, opening, phases

_started = False


def start() -> None:
    """Record this process once it is a rank of torch.distributed; idempotent."""
    global _started
    if not _started:
        _started = True
        leave_graphs(collectives.__name__)
        collectives.watch()
        opening.watch()
        phases.watch()
