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

    modules: list[Any] = list(sys.modules.values())
    for module in modules:  # torch's own modules hold the function too
        if _holds(module, original):
            setattr(module, original.__name__, init_process_group)


def _set_arguments(parts: set[str]) -> None:
    """Give parts of torch's what the environment says; what that needs is loaded when the first one is made."""
    if (ddp := "DistributedDataParallel") in parts:
        _replace((ddp, "make_ddp"), sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel, "__init__")
    if (loader := "DataLoader") in parts:
        _replace((loader, "make_loader"), sys.modules["torch.utils.data.dataloader"].DataLoader, "__init__")
    if (shard := "fully_shard") in parts:
        with contextlib.suppress(ImportError):  # a torch without FSDP2
            import torch.distributed.fsdp as fsdp

            holders = [module for module in list(sys.modules.values()) if _holds(module, fsdp.fully_shard)]
            _replace((shard, "shard"), fsdp, shard, *holders)


def _holds(module: Any, function: Any) -> bool:
    """Whether a module of torch's holds a function under its own name."""
    return getattr(module, "__name__", "").startswith("torch.") and vars(module).get(function.__name__) is function


def _replace(part: tuple[str, str], owner: Any, name: str, *others: Any) -> None:
    """Let a function of `ringtune.torch.part_settings` make what one of torch's makes: `part` names thing and maker."""
    original = getattr(owner, name)
    names = {variable: argument for variable, (of, argument) in ARGUMENTS.items() if of == part[0]}

    @functools.wraps(original)
    def make(*arguments: Any, **options: Any) -> Any:
        from ringtune.torch import part_settings

        return getattr(part_settings, part[1])(names, original, arguments, options)

    for one in (owner, *others):
        setattr(one, name, make)
