"""The session of a recorded job, opened when its default process group is there."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist

from ringtune import session
from ringtune.config import Config
from ringtune.errors import RingtuneError
from ringtune.torch.distributed.members import meet_in_world

_BACKEND = "ringtune"


def watch() -> None:
    """Open a session after each call of ``init_process_group``."""
    of_torch: Any = dist.distributed_c10d
    original = of_torch.init_process_group

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        _join()

    modules: list[Any] = list(sys.modules.values())
    for module in modules:  # torch's own modules hold the name too
        if getattr(module, "__name__", "").startswith("torch.") and vars(module).get(original.__name__) is original:
            setattr(module, original.__name__, init_process_group)


def _join() -> None:
    """Open the session of this rank, unless the script or the backend has opened one. A failure costs the recording."""
    if session.is_initialized() or dist.get_backend() == _BACKEND:
        return
    try:
        config = meet_in_world("ringtune/recorder", Config.from_environ())
        session.init(config).runtime.set_compute_threads(torch.get_num_threads())
    except RingtuneError as error:
        session.warn(f"this job is not recorded: {error}")
