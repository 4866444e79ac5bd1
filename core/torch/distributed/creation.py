"""How torch makes ringtune's process groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ringtune import session as sessions
from ringtune.config import Config
from ringtune.errors import InvalidArgument
from ringtune.session import Session
from ringtune.torch.distributed.group import WORLD, ProcessGroupRingtune
from ringtune.torch.distributed.members import Meeting, Seen, meet_through, open_group, open_world
from ringtune.torch.distributed.mixed import ProcessGroupMixed, open_beside, others_of
from ringtune.torch.distributed.traced import WORLD_LABEL, GroupLabel, label_of

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
    asked = _asked_for()
    backends = _backends_asked_for(asked.get("backend_config"))
    label = label_of(str(options.group_id), str(asked.get("group_desc") or ""))
    others = others_of(backends)
    beside = open_beside(options, others, timeout) if others else None
    session, meeting, name = _open(options, timeout, label)
    if beside is None:
        made = ProcessGroupRingtune(session, meeting, name, timeout)
    else:
        made = ProcessGroupMixed(beside, session, meeting, name, timeout)
    made.store = options.store
    made.members = tuple(options.global_ranks_in_group)
    made.set_label(WORLD_LABEL if name == WORLD else label)
    made.serves = tuple(device for device in backends if device not in others) or made.serves
    return made


def _open(options: Any, timeout: timedelta, label: GroupLabel) -> tuple[Session, Meeting, str]:
    """Open the session of a group; return it with the meeting and the name that it has here."""
    rank, size = options.group_rank, options.group_size
    if not dist.is_initialized():
        session, meeting = open_world(options.store, rank, size, timeout)
        _meetings[:] = [meeting]
        return session, meeting, WORLD
    of_all, current = dist.get_world_size(), sessions.state.current
    if _meetings:
        meeting = _meetings[0]
    else:  # the world has another backend, so this group needs a rendezvous of its own
        if current is None or size == of_all:
            return *open_world(options.store, rank, size, timeout), WORLD
        config, rendezvous = meet_through(options.store, Config.from_environ(), rank, size)
        meeting = Meeting(config, False, rendezvous)
    name = f"group.{options.group_id}"
    limit_ns = max(1, int(timeout.total_seconds() * 1e9))
    # A session of some ranks, which a group before this one has opened, has another timeline than that of all.
    seen_as = Seen(label, tuple(options.global_ranks_in_group)) if sessions.require().size == of_all else None
    return open_group(meeting, name, (rank, size), limit_ns, seen_as), meeting, name


def _asked_for() -> Mapping[str, Any]:
    """Return what torch knows of the group that it makes and hands to no backend's creator: its own variables."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "backend_config" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals


def _backends_asked_for(config: Any) -> dict[str, str]:
    """Return a group's backend by device, as ``cpu:ringtune,cuda:nccl`` says.

    Args:
        config: torch's ``BackendConfig`` of the group; None where torch keeps it elsewhere.
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
