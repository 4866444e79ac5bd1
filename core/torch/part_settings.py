"""Arguments of DDP, FSDP2 and data loaders that the environment gives, whatever the script says.

So `ringtune tune --restarts` tries them. A run's file ``torch.json`` then tells which backend of torch.distributed the
job has, and what the first model and the first loader were made with.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset

from ringtune import layout, runfolder, session
from ringtune.config import Config

Names = Mapping[str, str]
"""Variables, and the argument that each sets."""

_CAP_MB, _FIRST_MB = 25, 1
"""DDP's own sizes of buckets."""

_made: dict[str, str] = {}
"""What the first of each kind in this process was made with, as the variables that set it."""


def make_ddp(names: Names, original: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Make a model of DDP's as a script asks for it, but for what the environment says.

    Args:
        names: Variables, and the argument of DDP's that each sets.
        original: DDP's own ``__init__``.
        arguments: What the script gives it by position, the object itself first.
        options: What it gives by name.

    Raises:
        ConfigError: A variable cannot be understood.
    """
    bound = _bound(names, original, arguments, options)
    first, cap = bound.arguments.pop("first_bucket_mb", None), bound.arguments["bucket_cap_mb"]
    if "bucket_cap_mb_list" not in bound.arguments:  # older than torch 2.13
        first, names = None, {variable: name for variable, name in names.items() if name != "first_bucket_mb"}
    elif first is not None:
        bound.arguments["bucket_cap_mb_list"] = [first, cap or _CAP_MB]
    original(*bound.args, **bound.kwargs)
    own = {"bucket_cap_mb": cap or _CAP_MB, "first_bucket_mb": first or cap or _FIRST_MB}
    _tell_made(names, bound.arguments | own)


def make_loader(names: Names, original: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Make a data loader as `make_ddp` a model; workers would each give all of a dataset that is a stream."""
    bound = _bound(names, original, arguments, options)
    if isinstance(bound.arguments["dataset"], IterableDataset):
        original(*arguments, **options)
        return
    if bound.arguments["num_workers"] == 0:  # without workers a loader refuses what is said of them
        none = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None, "timeout": 0}
        bound.arguments |= {name: value for name, value in none.items() if name in bound.arguments}
    original(*bound.args, **bound.kwargs)
    _tell_made(names, bound.arguments)


_sharded: list[weakref.ref[nn.Module]] = []
"""Modules of FSDP2's that are in no other one so far."""


def shard(names: Names, original: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Shard a module by ``fully_shard`` as `make_ddp` makes a model."""
    bound = _bound(names, original, arguments, options)
    ahead = bound.arguments.pop("prefetch", None) or 0
    result = original(*bound.args, **bound.kwargs)
    wrapper: Any = bound.arguments["module"]
    for one in wrapper if isinstance(wrapper, list) else [wrapper]:
        within = set(one.modules())
        before = [module for other in _sharded if (module := other()) is not None]
        _sharded[:] = [*(weakref.ref(other) for other in before if other not in within), weakref.ref(one)]
        if ahead:
            _prefetch(one, [other for other in before if other in within], ahead)
    _tell_made(names, bound.arguments | {"prefetch": 0})
    return result


MAKERS = {"DistributedDataParallel": make_ddp, "DataLoader": make_loader, "fully_shard": shard}
"""What makes each part of torch's that settings are for."""


def _prefetch(outer: Any, inner: Sequence[Any], ahead: int) -> None:
    """Have each of the inner modules, in the order in which they run, fetch the parameters of some after it."""
    outer.set_modules_to_forward_prefetch(inner[:ahead])
    for place, module in enumerate(inner):
        module.set_modules_to_forward_prefetch(inner[place + 1 :][:ahead])
        module.set_modules_to_backward_prefetch(inner[:place][::-1][:ahead])


def _bound(names: Names, original: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> inspect.BoundArguments:
    """Return the arguments of a call, with the defaults and with what the environment says."""
    bound = inspect.signature(original).bind(*arguments, **options)
    bound.apply_defaults()
    config = Config.from_environ()
    bound.arguments |= {name: value for name in names.values() if (value := getattr(config, name)) is not None}
    return bound


def _tell_made(names: Names, arguments: dict[str, Any]) -> None:
    """Remember what the first of a kind was made with, and tell it."""
    if not names.keys() <= _made.keys():
        _made.update({variable: _text(arguments[name]) for variable, name in names.items()})
        tell()


def _text(value: float | None) -> str:
    """Return the value of an argument as a variable has it; empty: torch decides."""
    return "" if value is None else f"{float(value):g}"


def tell() -> None:
    """Write into the run folder, if there is one, which backend the job has and what was made."""
    now = session.state.current
    if now is not None and now.run_folder is not None and now.rank == 0:
        backend = dist.get_backend_config() if dist.is_initialized() else ""
        runfolder.write_json(
            layout.torch_file(now.run_folder), {"format": layout.FORMAT, "backend": backend, "made": _made}
        )
