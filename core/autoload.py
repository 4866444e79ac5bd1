"""What torch loads at the end of ``import torch`` (entry-point group ``torch.backends``): it starts the recorder.

It does so where ``RINGTUNE_TIMELINE`` asks for a timeline, which ``ringtune record`` and ``ringtune run --timeline``
set, and then when the process becomes a rank. In any other process it looks at one variable of the environment.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any


def start() -> None:
    """Record this process from its first ``init_process_group`` on, where a timeline is asked for."""
    # With DYNAMIC the script itself begins the timeline, in a session of its own.
    if os.environ.get("RINGTUNE_TIMELINE", "").strip().upper() not in ("", "DYNAMIC"):
        _watch()


def _watch() -> None:
    """Start the recorder after ``init_process_group``; its failure costs the script nothing."""
    of_torch: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if of_torch is None:  # a torch that was built without it
        return
    original = of_torch.init_process_group

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        try:
            from ringtune.torch import recorder

            recorder.join()
        except Exception as error:
            print(f"ringtune warning: this process is not recorded: {error}", file=sys.stderr, flush=True)

    modules: list[Any] = list(sys.modules.values())
    for module in modules:  # torch's own modules hold the function too
        if getattr(module, "__name__", "").startswith("torch.") and vars(module).get(original.__name__) is original:
            setattr(module, original.__name__, init_process_group)
