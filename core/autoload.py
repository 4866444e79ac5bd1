"""What torch loads at the end of ``import torch`` (entry-point group ``torch.backends``).

Where ``RINGTUNE_TIMELINE`` asks for a timeline, which ``ringtune record`` and ``ringtune run --timeline`` set, it
starts the recorder when the process becomes a rank. It gives DDP the arguments that the environment has for it. In any
other process it looks at some variables of the environment and does nothing.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

DDP_ARGUMENTS = {
    "RINGTUNE_BUCKET_CAP_MB": "bucket_cap_mb",
    "RINGTUNE_DDP_BUCKET_VIEW": "gradient_as_bucket_view",
    "RINGTUNE_DDP_STATIC_GRAPH": "static_graph",
}
"""Variables, and the arguments of ``DistributedDataParallel`` that they set."""

STEPS = "_RINGTUNE_STEPS"
"""Set in the runs of ``ringtune tune --restarts``: steps are counted in jobs of any backend. It is no setting."""


def start() -> None:
    """Record this process from its ``init_process_group`` on, and set DDP's arguments, where that is asked for."""
    of_torch: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if of_torch is None:  # a torch that was built without it
        return
    steps = STEPS in os.environ
    # With DYNAMIC the script itself begins the timeline, in a session of its own.
    if steps or os.environ.get("RINGTUNE_TIMELINE", "").strip().upper() not in ("", "DYNAMIC"):
        _watch(of_torch)
    if steps or any(name in os.environ for name in DDP_ARGUMENTS):
        _set_arguments(sys.modules["torch.nn.parallel.distributed"])


def _watch(of_torch: Any) -> None:
    """Start the recorder after ``init_process_group``; its failure costs the script nothing."""
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


def _set_arguments(of_torch: Any) -> None:
    """Give models of DDP's what the environment says; what that needs is loaded when the first one is made."""
    original = of_torch.DistributedDataParallel.__init__

    @functools.wraps(original)
    def make(*arguments: Any, **options: Any) -> None:
        from ringtune.torch import ddp_settings

        ddp_settings.make(original, arguments, options, tuple(DDP_ARGUMENTS.values()))

    of_torch.DistributedDataParallel.__init__ = make
