"""How torch makes ringtune's process groups."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ringtune.errors import InvalidArgument, NotSupported
from ringtune.torch.distributed.group import WORLD, ProcessGroupRingtune
from ringtune.torch.distributed.members import Meeting, open_group, open_world

_DEFAULT_TIMEOUT = timedelta(seconds=300)

_meetings: list[Meeting] = []


def create_group(options: Any, backend_options: Any = None) -> ProcessGroupRingtune:
    """Make a group; torch calls it (``register_backend``).

    Args:
        options: torch's ``DistributedBackendOptions``: store, rank and size in the group, timeout, name.
        backend_options: None: ringtune reads its settings from the environment.

    Raises:
        NotSupported: The group has another backend for another device, or ringtune for another than the CPU.
    """
    _refuse_mixture(sys._getframe(1).f_locals.get("backend_config"))
    timeout = options.timeout or _DEFAULT_TIMEOUT
    if not dist.is_initialized():
        session, meeting = open_world(options.store, options.group_rank, options.group_size, timeout)
        _meetings[:] = [meeting]
        return ProcessGroupRingtune(session, meeting, WORLD, timeout)
    if not _meetings:  # the world has another backend: this group brings its own meeting
        session, meeting = open_world(options.store, options.group_rank, options.group_size, timeout)
        return ProcessGroupRingtune(session, meeting, WORLD, timeout)
    name = f"group.{options.group_id}"
    session = open_group(_meetings[0], name, options.group_rank, options.group_size)
    return ProcessGroupRingtune(session, _meetings[0], name, timeout)


def _refuse_mixture(config: Any) -> None:
    """Refuse a group such as ``cpu:ringtune,cuda:nccl``.

    torch takes a backend that is written in Python for the whole group and forgets all others in silence (its `Backend`
    has no constructor for Python), and tells a backend's maker nothing of them: its own variable is looked at.

    Args:
        config: torch's ``BackendConfig`` of the group, None where torch keeps it elsewhere.
    """
    devices = dict(config.get_device_backend_map()) if hasattr(config, "get_device_backend_map") else {}
    others = sorted(device for device in devices if device != "cpu")
    if others:
        asked = ",".join(f"{device}:{backend}" for device, backend in devices.items())
        raise NotSupported(
            f"a group with backends {asked}: torch would give the whole group to ringtune, which takes tensors of the "
            f"CPU, and drop the backend of {', '.join(others)}. Open the world with that backend alone and a group of "
            'its own for CPU tensors: dist.new_group(backend="ringtune")'
        )


def monitored_barrier(group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> None:
    """Wait until all ranks have come here, at most so long; torch's own function of this name knows Gloo only.

    Raises:
        Timeout: Not all ranks came; the stall report on rank 0 names the missing ones.
    """
    found: Any = group if group is not None else dist.group.WORLD
    if not isinstance(found, ProcessGroupRingtune):
        raise InvalidArgument(f"monitored_barrier: {found} is no group of ringtune's")
    found.barrier().wait(timeout or found._timeout)
