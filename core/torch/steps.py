"""Steps of a training that no `DistributedOptimizer` marks: any optimizer's step ends one that has communicated.

So it is with DDP, FSDP2 and ZeRO, and where a script reduces its gradients itself (``hvd.allreduce_(parameter.grad)``).
The runtime counts steps for statistics, timelines and the tuner. A step without communication before it (a second
optimizer of the same batch, a training on one rank's own) ends none, nor does that of an optimizer within another one,
as ZeroRedundancyOptimizer has it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ringtune import session
from ringtune.session import Session

_communicated = False
_wrapped = False
"""Whether there is a `DistributedOptimizer`: its steps are the job's, whatever else the script reduces."""
_reduced: tuple[int, int] = (0, 0)
"""Session and number of its allreduces when an optimizer stepped last."""


_looked_at: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_within: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers whose steps are parts of another one's."""


def communicated() -> None:
    """Take note that this step has sent something."""
    global _communicated
    _communicated = True


def _reduced_by_hand(now: Session) -> bool:
    """Whether allreduces have ended since an optimizer stepped last."""
    global _reduced
    before, _reduced = _reduced, (id(now), now.traffic().get("ALLREDUCE", (0, 0))[0])
    return _reduced not in (before, (id(now), 0))


def _steps(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if optimizer not in _looked_at:
        _looked_at.add(optimizer)
        _within.update(one for one in vars(optimizer).values() if isinstance(one, torch.optim.Optimizer))


def _stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    global _communicated, _wrapped
    now = session.state.current
    if now is None or optimizer in _within:
        return
    by_hand = _reduced_by_hand(now)
    if hasattr(optimizer, "skip_synchronize"):
        _wrapped = True
    elif _communicated or (by_hand and not _wrapped):
        _communicated = False
        now.end_step()


register_optimizer_step_pre_hook(_steps)
register_optimizer_step_post_hook(_stepped)
