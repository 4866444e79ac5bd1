"""torch.distributed with Gloo or NCCL beside ringtune: a process group over the ranks of a ringtune job."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import ringtune.torch as hvd

_TIMEOUT = timedelta(seconds=60)


_groups: dict[str, Any] = {}


def group_of(backend: str) -> Any:
    """Returns the group of a backend that `open_group` holds; None, torch's default one, where it holds none."""
    return _groups.get(backend)


@contextmanager
def open_group(backend: str, *others: str) -> Iterator[None]:
    """Holds torch's process groups over the ranks of the running ringtune job, the default one first.

    Args:
        backend: ``gloo`` or ``nccl``.
        others: more of them.
    """
    named = os.environ.get("RINGTUNE_INTERFACE_ADDRESS")
    host = named or ("127.0.0.1" if hvd.local_size() == hvd.size() else socket.gethostname())
    if host == "127.0.0.1":
        # Gloo otherwise takes the address of the host's name, which on some machines is unreachable.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = _open_store(host)
    dist.init_process_group(backend, store=store, rank=hvd.rank(), world_size=hvd.size())
    _groups.update({one: dist.new_group(backend=one) for one in others})
    try:
        yield
        # The store lives in rank 0, which stays until no rank needs it.
        dist.barrier()
    finally:
        _groups.clear()
        dist.destroy_process_group()


def _open_store(host: str) -> TCPStore:
    """Returns torch's store, served by rank 0 on a free port of `host`."""
    served = TCPStore(host, 0, hvd.size(), True, _TIMEOUT, False) if hvd.rank() == 0 else None
    address = (host, served.port) if served else None
    name, port = hvd.broadcast_object(address, root_rank=0, name="bench.gloo_store")
    return served or TCPStore(name, port, hvd.size(), False, _TIMEOUT)
