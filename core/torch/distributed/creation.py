"""How torch makes ringtune's process groups."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ringtune.errors import InvalidArgument
from ringtune.session import Session
from ringtune.torch.distributed.group import WORLD, ProcessGroupRingtune
from ringtune.torch.distributed.members import Meeting, open_group, open_world
from ringtune.torch.distributed.mixed import ProcessGroupMixed, open_beside, others_of

_DEFAULT_TIMEOUT = timedelta(seconds=300)

_meetings: list[Meeting] = []


def create_group(options: Any, backend_options: Any = None) -> ProcessGroupRingtune:
    """Make a group; torch calls it (``register_backend``).

    Args:
        options: torch's ``DistributedBackendOptions``: store, rank and size in the group, timeout, name.
        backend_options: None: ringtune reads its settings from the environment.

    Raises:
        NotSupported: ringtune is asked to serve another device than the CPU and CUDA.
        RuntimeError: torch cannot make the backend of another device.
    """
    timeout = options.timeout or _DEFAULT_TIMEOUT
    backends = _backends_asked_for(sys._getframe(1).f_locals.get("backend_config"))
    others = others_of(backends)
    beside = open_beside(options, others, timeout) if others else None
    session, meeting, name = _open(options, timeout)
    if beside is None:
        made = ProcessGroupRingtune(session, meeting, name, timeout)
    else:
        made = ProcessGroupMixed(beside, session, meeting, name, timeout)
    made.store = options.store
    made.members = tuple(options.global_ranks_in_group)
    made.serves = tuple(device for device in backends if device not in others) or made.serves
    return made


def _open(options: Any, timeout: timedelta) -> tuple[Session, Meeting, str]:
    """Open the session of a group; return it with the meeting and the name that it has here."""
    if not dist.is_initialized():
        session, meeting = open_world(options.store, options.group_rank, options.group_size, timeout)
        _meetings[:] = [meeting]
        return session, meeting, WORLD
    if not _meetings:  # the world has another backend, so this group needs a rendezvous of its own
        return *open_world(options.store, options.group_rank, options.group_size, timeout), WORLD
    name = f"group.{options.group_id}"
    limit_ns = max(1, int(timeout.total_seconds() * 1e9))
    return open_group(_meetings[0], name, (options.group_rank, options.group_size), limit_ns), _meetings[0], name


def _backends_asked_for(config: Any) -> dict[str, str]:
    """Return a group's backend by device, as ``cpu:ringtune,cuda:nccl`` says.

    Args:
        config: torch's ``BackendConfig`` of the group, which it does not hand to a backend's creator: its own variable
            is looked at. None where torch keeps it elsewhere.
    """
    return dict(config.get_device_backend_map()) if hasattr(config, "get_device_backend_map") else {}


def monitored_barrier(group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> None:
    """Wait until all ranks have reached this point, at most so long; torch's own function supports Gloo only.

    Raises:
        Timeout: Not all ranks came; the stall report on rank 0 names the missing ones.
    """
    found: Any = group if group is not None else dist.group.WORLD
    if not isinstance(found, ProcessGroupRingtune):
        raise InvalidArgument(f"monitored_barrier: {found} is no group of ringtune's")
    found.monitored_barrier(timeout)
