"""Arguments of DDP that the environment gives, whatever the script says: how `ringtune tune --restarts` tries them.

A run's file ``torch.json`` then tells which backend of torch.distributed the job has, and what DDP was made with.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ringtune import layout, runfolder, session
from ringtune.config import Config

_first: dict[str, Any] = {}
"""What the first model of this process was made with, by argument."""


def watch(names: tuple[str, ...]) -> None:
    """Give every model of DDP's that is made from now on what the environment says.

    Args:
        names: Of the arguments: bucket size, gradients as views of buckets, static graph.
    """
    original = DistributedDataParallel.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(*arguments: Any, **options: Any) -> None:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        config = Config.from_environ()
        given = (config.bucket_cap_mb, config.ddp_bucket_view, config.ddp_static_graph)
        for name, value in zip(names, given, strict=True):
            if value is not None:
                bound.arguments[name] = value
        original(*bound.args, **bound.kwargs)
        if not _first:
            _first.update({name: bound.arguments[name] for name in names})
            tell()

    of_torch: Any = DistributedDataParallel
    of_torch.__init__ = make


def tell() -> None:
    """Write into the run folder, if there is one, which backend the job has and what its first model was made with."""
    now = session.state.current
    if now is not None and now.run_folder is not None and now.rank == 0:
        document = {"format": layout.FORMAT, "backend": dist.get_backend_config(), "ddp": _first or None}
        runfolder.write_json(layout.torch_file(now.run_folder), document)
