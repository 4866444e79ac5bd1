"""Steps of a training that no `DistributedOptimizer` marks: with DDP, FSDP2 or ZeRO any optimizer's step ends one.

The runtime counts steps for statistics, timelines and the tuner. A step without communication before it (a second
optimizer of the same batch, a training on one rank's own) ends none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ringtune import session

_communicated = False


def communicated() -> None:
    """Take note that this step has sent something."""
    global _communicated
    _communicated = True


def _stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    global _communicated
    now = session.state.current
    if now is not None and _communicated and not hasattr(optimizer, "skip_synchronize"):
        _communicated = False
        now.end_step()


register_optimizer_step_post_hook(_stepped)
