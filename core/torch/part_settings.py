"""Arguments of DDP, FSDP2 and data loaders that the environment gives, whatever the script says.

So `ringtune tune --restarts` tries them. A run's file ``torch.json`` then tells which backend of torch.distributed the
job has, and what the first model and the first loader were made with.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset

from ringtune import layout, runfolder, session
from ringtune.autoload import ARGUMENTS
from ringtune.config import Config

_made: dict[str, str] = {}
"""What the first of each kind in this process was made with, as the variables that set it."""


def make_ddp(original: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Make a model of DDP's as a script asks for it, but for what the environment says.

    Args:
        original: DDP's own ``__init__``.
        arguments: What the script gives it by position, the object itself first.
        options: What it gives by name.

    Raises:
        ConfigError: A variable cannot be understood.
    """
    bound = _bound("DistributedDataParallel", original, arguments, options)
    original(*bound.args, **bound.kwargs)
    _tell_made("DistributedDataParallel", bound.arguments | {"bucket_cap_mb": bound.arguments["bucket_cap_mb"] or 25})


def make_loader(original: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Make a data loader as `make_ddp` a model; workers would each give all of a dataset that is a stream."""
    bound = _bound("DataLoader", original, arguments, options)
    if isinstance(bound.arguments["dataset"], IterableDataset):
        original(*arguments, **options)
        return
    if bound.arguments["num_workers"] == 0:  # without workers a loader refuses what is said of them
        none = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None, "timeout": 0}
        bound.arguments |= {name: value for name, value in none.items() if name in bound.arguments}
    original(*bound.args, **bound.kwargs)
    _tell_made("DataLoader", bound.arguments)


_sharded: list[nn.Module] = []
"""Modules of FSDP2's that are in no other one so far."""


def shard(original: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Shard a module by ``fully_shard`` as `make_ddp` makes a model."""
    bound = _bound("fully_shard", original, arguments, options)
    ahead = bound.arguments.pop("prefetch", None) or 0
    result = original(*bound.args, **bound.kwargs)
    wrapper: Any = bound.arguments["module"]
    for one in wrapper if isinstance(wrapper, list) else [wrapper]:
        within = {id(inner) for inner in one.modules()}
        inner = [other for other in _sharded if id(other) in within]
        _sharded[:] = [*(other for other in _sharded if id(other) not in within), one]
        if ahead:
            _prefetch(one, inner, ahead)
    _tell_made("fully_shard", bound.arguments | {"prefetch": 0})
    return result


def _prefetch(outer: Any, inner: Sequence[Any], ahead: int) -> None:
    """Have each of the inner modules, in the order in which they run, fetch the parameters of some after it."""
    outer.set_modules_to_forward_prefetch(inner[:ahead])
    for place, module in enumerate(inner):
        module.set_modules_to_forward_prefetch(inner[place + 1 :][:ahead])
        module.set_modules_to_backward_prefetch(inner[:place][::-1][:ahead])


def _bound(part: str, original: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> inspect.BoundArguments:
    """Return the arguments of a call, with the defaults and with what the environment says."""
    bound = inspect.signature(original).bind(*arguments, **options)
    bound.apply_defaults()
    config = Config.from_environ()
    names = [name for of, name in ARGUMENTS.values() if of == part]
    bound.arguments |= {name: value for name in names if (value := getattr(config, name)) is not None}
    return bound


def _tell_made(part: str, arguments: dict[str, Any]) -> None:
    """Remember what the first of a kind was made with, and tell it."""
    found = {variable: name for variable, (of, name) in ARGUMENTS.items() if of == part and variable not in _made}
    if found:
        _made.update({variable: _text(arguments[name]) for variable, name in found.items()})
        tell()


def _text(value: float | None) -> str:
    """Return the value of an argument as a variable has it; empty: torch decides."""
    return "" if value is None else str(int(value))


def tell() -> None:
    """Write into the run folder, if there is one, which backend the job has and what was made."""
    now = session.state.current
    if now is not None and now.run_folder is not None and now.rank == 0:
        backend = dist.get_backend_config() if dist.is_initialized() else ""
        runfolder.write_json(
            layout.torch_file(now.run_folder), {"format": layout.FORMAT, "backend": backend, "made": _made}
        )
