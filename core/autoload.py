"""What torch loads at the end of ``import torch`` (entry-point group ``torch.backends``).

``dist.init_process_group("ringtune")`` then needs no import before it. Where ``RINGTUNE_TIMELINE`` asks for a
timeline, which ``ringtune record`` and ``ringtune run --timeline`` set, the recorder starts when the process becomes a
rank. DDP, FSDP2 and data loaders get the arguments that the environment has for them. In any other process it looks at
some variables of the environment and does nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import Any

ARGUMENTS = {
    "RINGTUNE_BUCKET_CAP_MB": ("DistributedDataParallel", "bucket_cap_mb"),
    "RINGTUNE_DDP_FIRST_BUCKET_MB": ("DistributedDataParallel", "first_bucket_mb"),
    "RINGTUNE_DDP_BUCKET_VIEW": ("DistributedDataParallel", "gradient_as_bucket_view"),
    "RINGTUNE_DDP_STATIC_GRAPH": ("DistributedDataParallel", "static_graph"),
    "RINGTUNE_FSDP_RESHARD": ("fully_shard", "reshard_after_forward"),
    "RINGTUNE_FSDP_PREFETCH": ("fully_shard", "prefetch"),
    "RINGTUNE_LOADER_WORKERS": ("DataLoader", "num_workers"),
}
"""Variables, and the argument of which part of torch's each sets; ``first_bucket_mb`` and ``prefetch`` are our own."""

STEPS = "_RINGTUNE_STEPS"
"""Set in the runs of ``ringtune tune --restarts``: steps are counted in jobs of any backend. It is no setting."""


BACKEND = "ringtune"
"""Name of ringtune's backend of ``torch.distributed``."""


def start() -> None:
    """Register the backend; where it is asked for, record from ``init_process_group`` on and set arguments."""
    of_torch: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if of_torch is None:  # a torch that was built without it
        return
    if BACKEND.upper() not in of_torch.Backend._plugins:
        of_torch.Backend.register_backend(BACKEND, _create_group, extended_api=True, devices=["cpu", "cuda"])
    steps = STEPS in os.environ
    # With DYNAMIC the script itself begins the timeline, in a session of its own.
    if steps or os.environ.get("RINGTUNE_TIMELINE", "").strip().upper() not in ("", "DYNAMIC"):
        _watch(of_torch)
    _set_arguments({part for name, (part, _) in ARGUMENTS.items() if steps or name in os.environ})


def _create_group(options: Any, backend_options: Any = None) -> Any:
    """Make a group of ringtune's; what that needs is loaded when the first one is made."""
    from ringtune.torch.distributed.creation import create_group

    return create_group(options, backend_options)


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

    _put(original, init_process_group)


def _set_arguments(parts: set[str]) -> None:
    """Give parts of torch's what the environment says; what that needs is loaded when the first one is made."""
    for module, part in (("torch.nn.parallel.distributed", "DistributedDataParallel"),
                         ("torch.utils.data.dataloader", "DataLoader")):  # fmt: skip
        if part in parts:
            made: Any = getattr(sys.modules[module], part)
            made.__init__ = _maker(part, made.__init__)
    if "fully_shard" in parts:
        with contextlib.suppress(ImportError):  # a torch without FSDP2
            from torch.distributed.fsdp import fully_shard

            _put(fully_shard, _maker("fully_shard", fully_shard))


def _maker(part: str, original: Any) -> Any:
    """Return what makes a part of torch's with the arguments of the environment."""
    names = {variable: argument for variable, (of, argument) in ARGUMENTS.items() if of == part}

    @functools.wraps(original)
    def make(*arguments: Any, **options: Any) -> Any:
        from ringtune.torch import part_settings

        return part_settings.MAKERS[part](names, original, arguments, options)

    return make


def _put(original: Any, replacement: Any) -> None:
    """Put a function in the place of one of torch's, in all of torch's modules that hold it under its name."""
    name = original.__name__
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("torch.") and vars(module).get(name) is original:
            setattr(module, name, replacement)
