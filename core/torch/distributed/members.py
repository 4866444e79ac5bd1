"""Sessions under process groups: the world's own session, and one for each further group and each pair that sends."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ringtune import native
from ringtune import session as sessions
from ringtune.bootstrap import rank_process, secret
from ringtune.bootstrap.interfaces import is_loopback
from ringtune.bootstrap.opening import runtime_options
from ringtune.bootstrap.rendezvous import Rendezvous
from ringtune.config import Config
from ringtune.errors import RingtuneError, Timeout
from ringtune.session import JobContext, Session
from ringtune.torch.distributed.traced import GroupLabel

_KEY, _SECRET_KEY = "ringtune/address", "ringtune/secret"
_served: list[Rendezvous] = []  # keeps the last world's store alive on rank 0


@dataclass
class Meeting:
    """Where the groups of this process meet.

    Attributes:
        config: Settings of this process, with the address of ringtune's rendezvous store and the name of the job.
        owns_session: Whether the world's session was opened here.
        rendezvous: Keeps the store's server alive on rank 0.
    """

    config: Config
    owns_session: bool
    rendezvous: Rendezvous


class Seen(NamedTuple):
    """How a group stands in the timeline.

    Attributes:
        label: Its number and text.
        members: The ranks in the world of its ranks.
    """

    label: GroupLabel
    members: tuple[int, ...]


def open_world(store: Any, rank: int, size: int, timeout: timedelta) -> tuple[Session, Meeting]:
    """Open the session of all ranks, or take the one that the script has opened.

    Args:
        store: torch's store, in which rank 0 leaves the address of ringtune's.
        rank: Rank in the world.
        size: Number of ranks.
        timeout: How long to wait for the others.

    Raises:
        RingtuneError: The open session has other ranks, or the ranks cannot meet.
    """
    limit_ns = max(1, int(timeout.total_seconds() * 1e9))
    base = Config.from_environ(rank_process.own_environment(os.environ, tell=False))
    config, rendezvous = meet_through(store, base, rank, size)
    current = sessions.state.current
    if current is not None and (current.rank, current.size) != (rank, size):
        raise RingtuneError(
            f"init_process_group: this is rank {rank} of {size}, but ringtune's open session is rank {current.rank} "
            f"of {current.size}; start both the same way, or call hvd.shutdown() first"
        )
    opened = current if current is not None else Session.open(_limited(config, limit_ns))
    opened.set_compute_threads(torch.get_num_threads())
    return opened, Meeting(config, current is None, rendezvous)


def meet_through(store: Any, base: Config, rank: int, size: int) -> tuple[Config, Rendezvous]:
    """Let the ranks find each other: rank 0 serves ringtune's store and leaves its address in torch's.

    Args:
        store: torch's store.
        base: Settings of this process.
        rank: Rank in the world.
        size: Number of ranks.

    Returns:
        The settings with this rank's place in the job, and what keeps the server alive on rank 0.
    """
    rendezvous = Rendezvous()
    one_host = os.environ.get("LOCAL_WORLD_SIZE") == str(size)
    reach = os.environ.get("MASTER_ADDR", "localhost")
    local = is_loopback(reach)
    rendezvous.secret = secret.through_torch(store, _SECRET_KEY, base, rank, one_host=one_host, on_loopback=local)
    if rank == 0:
        host, port = rendezvous.serve(base, reach, several_hosts=not local)
        store.set(_KEY, f"{host} {port}")
    host, port_text = store.get(_KEY).decode().split()
    job = f"{base.job or 'torch'}.torch"
    store_at, agreed = (host, int(port_text)), rendezvous.secret
    return dataclasses.replace(base, rank=rank, size=size, store=store_at, job=job, secret=agreed), rendezvous


def meet_in_world(prefix: str, base: Config) -> Config:
    """Let the ranks of torch.distributed's world find each other, for a session beside its process group.

    Args:
        prefix: Of the names in the world's store; used once.
        base: Settings of this process.

    Raises:
        Timeout: Rank 0 has not come within the time that `base` has for the start of a job.
    """
    of_torch: Any = dist.distributed_c10d  # whose stub files lack both
    store = of_torch.PrefixStore(prefix, of_torch._get_default_store())
    if dist.get_rank() != 0:
        limit = timedelta(microseconds=base.start_timeout_ns // 1000)
        try:
            store.wait([_KEY], limit)
        except dist.DistStoreError:
            raise Timeout(f"rank 0 has opened no session of ringtune within {limit.total_seconds():g} s") from None
    config, server = meet_through(store, base, dist.get_rank(), dist.get_world_size())
    _served[:] = [server]
    return config


def open_group(
    meeting: Meeting, name: str, rank_and_size: tuple[int, int], limit_ns: int, seen_as: Seen | None = None
) -> Session:
    """Open a session of some ranks beside the world's, which writes nothing of its own.

    Args:
        meeting: Where the ranks meet.
        name: Name of the group, the same on all its ranks and used once.
        rank_and_size: Rank in the group, and number of ranks in it.
        limit_ns: How long to wait for the others, and for bytes of a collective that does not move.
        seen_as: How its collectives stand in the timeline of the world's session; None: they do not.

    Raises:
        Timeout: Ranks are missing; the message names them.
    """
    rank, size = rank_and_size
    world = sessions.require()
    placed = dataclasses.replace(world.placement, rank=rank, size=size, local_rank=None, local_size=None)
    job = f"{meeting.config.job}.{name}"
    config = _limited(dataclasses.replace(meeting.config, thread_affinity=()), limit_ns)
    assert config.store is not None
    options = runtime_options(config, placed, config.store, job)
    with native.translated():
        if seen_as is None:
            runtime = native.load().Runtime(options)
        else:
            runtime = world.group_runtime(options, *seen_as.label, seen_as.members)
    runtime.set_compute_threads(torch.get_num_threads())
    return Session(meeting.config, placed, runtime, JobContext(job, None, world.planned_folder))


def _limited(config: Config, limit_ns: int) -> Config:
    """Return the settings with a group's timeout: for ranks to meet, and for a collective whose bytes stand still."""
    idle_ns = min(config.idle_timeout_ns or limit_ns, limit_ns)
    return dataclasses.replace(config, start_timeout_ns=min(config.start_timeout_ns, limit_ns), idle_timeout_ns=idle_ns)
