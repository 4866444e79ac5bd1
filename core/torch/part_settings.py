"""Arguments of DDP that the environment gives, whatever the script says: how `ringtune tune --restarts` tries them.

A run's file ``torch.json`` then tells which backend of torch.distributed the job has, and what DDP was made with.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist

from ringtune import layout, runfolder, session
from ringtune.config import Config

_first: dict[str, Any] = {}
"""What the first model of this process was made with, by argument."""


def make(original: Any, arguments: tuple[Any, ...], options: dict[str, Any], names: tuple[str, ...]) -> None:
    """Make a model of DDP's as a script asks for it, but for what the environment says.

    Args:
        original: DDP's own ``__init__``.
        arguments: What the script gives it by position, the object itself first.
        options: What it gives by name.
        names: Arguments that the environment may set; the settings have their names.

    Raises:
        ConfigError: A variable cannot be understood.
    """
    bound = inspect.signature(original).bind(*arguments, **options)
    bound.apply_defaults()
    config = Config.from_environ()
    bound.arguments |= {name: value for name in names if (value := getattr(config, name)) is not None}
    original(*bound.args, **bound.kwargs)
    if not _first:
        _first.update({name: bound.arguments[name] for name in names})
        tell()


def tell() -> None:
    """Write into the run folder, if there is one, which backend the job has and what its first model was made with."""
    now = session.state.current
    if now is not None and now.run_folder is not None and now.rank == 0:
        document = {"format": layout.FORMAT, "backend": dist.get_backend_config(), "ddp": _first or None}
        runfolder.write_json(layout.torch_file(now.run_folder), document)
