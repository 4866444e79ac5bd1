"""Sessions under process groups: the world's own session, one for each further group and each pair that sends."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from ringtune import native
from ringtune import session as sessions
from ringtune.config import Config
from ringtune.errors import RingtuneError
from ringtune.opening import runtime_options
from ringtune.operations import Broadcast
from ringtune.rendezvous import Rendezvous
from ringtune.session import Links, Session
from ringtune.torch.devices import place_of
from ringtune.torch.handles import dtype_number

_KEY = "ringtune/address"


@dataclass
class Meeting:
    """Where the groups of this process meet.

    Attributes:
        address: ringtune's rendezvous store.
        job: Name of the job.
        config: Settings of this process.
        owns_session: Whether the world's session was opened here.
        rendezvous: Keeps the store's server alive on rank 0.
    """

    address: tuple[str, int]
    job: str
    config: Config
    owns_session: bool
    rendezvous: Rendezvous


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
    base = Config.from_environ()
    limit_ns = max(1, int(timeout.total_seconds() * 1e9))
    rendezvous = Rendezvous()
    if rank == 0:
        reach = os.environ.get("MASTER_ADDR", "localhost")
        host, port = rendezvous.serve(base, reach, several_hosts=not reach.startswith(("127.", "localhost")))
        store.set(_KEY, f"{host} {port}")
    host, port_text = store.get(_KEY).decode().split()
    job = base.job or "torch"
    config = dataclasses.replace(
        base,
        rank=rank,
        size=size,
        store=(host, int(port_text)),
        job=f"{job}.torch",
        start_timeout_ns=min(base.start_timeout_ns, limit_ns),
    )
    current = sessions.state.current
    if current is not None and (current.rank, current.size) != (rank, size):
        raise RingtuneError(
            f"init_process_group: this is rank {rank} of {size}, but ringtune's open session is rank {current.rank} "
            f"of {current.size}; start both the same way, or call hvd.shutdown() first"
        )
    opened = current if current is not None else Session.open(config)
    opened.runtime.set_compute_threads(torch.get_num_threads())
    return opened, Meeting((host, int(port_text)), f"{job}.torch", config, current is None, rendezvous)


def open_group(meeting: Meeting, name: str, rank: int, size: int) -> Session:
    """Open a session of some ranks beside the world's: it records nothing and writes nothing.

    Args:
        meeting: Where the ranks meet.
        name: Name of the group, the same on all its ranks and used once.
        rank: Rank in the group.
        size: Number of ranks in it.
    """
    world = sessions.require()
    place = dataclasses.replace(world.placement, rank=rank, size=size, local_rank=None, local_size=None)
    job = f"{meeting.job}.{name}"
    options = runtime_options(dataclasses.replace(meeting.config, thread_affinity=()), place, meeting.address, job)
    with native.translated():
        runtime = native.load().Runtime(options)
    runtime.set_compute_threads(torch.get_num_threads())
    return Session(meeting.config, place, runtime, Links(job, None, world.planned_folder))


class Pair:
    """Sends to and receives from one peer: a session of two, in which a send is a broadcast.

    Opened by a thread, because the two ranks need not come here at the same time; operations are submitted in the
    order in which they were asked for.

    Args:
        opens: Opens the session; blocks until the peer does so too.
        low: Whether this rank is the lower one of the two.
    """

    def __init__(self, opens: Callable[[], Session], low: bool) -> None:
        self._opens = opens
        self._low = low
        self._lock = threading.Lock()
        self._waiting: list[Callable[[Session], None]] = []
        self._counts: dict[tuple[bool, int], int] = {}
        self._session: Session | None = None
        self._failure: RingtuneError | None = None
        threading.Thread(target=self._open, name="ringtune-pair", daemon=True).start()

    def start(
        self, tensor: torch.Tensor, tag: int, sends: bool, submitted: Callable[[Session | None, Any], None]
    ) -> None:
        """Send or receive a contiguous tensor.

        Args:
            tensor: What is sent, or where it goes.
            tag: Tag that both sides give.
            sends: Whether this rank sends.
            submitted: Called with session and ticket, or with None and the failure, from any thread.
        """
        from_low = sends == self._low
        number, place = dtype_number(tensor), place_of(tensor)

        def submit(session: Session) -> None:
            count = self._counts.get((from_low, tag), 0)
            self._counts[from_low, tag] = count + 1
            name = f"p2p.{'up' if from_low else 'down'}.{tag}.{count}"
            address = tensor.data_ptr()
            ticket = session.submit_broadcast(
                Broadcast(name, address, address, tuple(tensor.shape), number, 0 if from_low else 1, place=place)
            )
            submitted(session, ticket)

        with self._lock:
            if self._failure is not None:
                submitted(None, self._failure)
            elif self._session is None:
                self._waiting.append(lambda session: submit(session) if session else submitted(None, self._failure))
            else:
                submit(self._session)

    def close(self) -> None:
        """Leave; the peer need not come."""
        with self._lock:
            if self._session is not None:
                self._session.close()

    def _open(self) -> None:
        session: Any = None
        failure: RingtuneError | None = None
        try:
            session = self._opens()
        except RingtuneError as error:
            failure = error
        with self._lock:
            self._session, self._failure = session, failure
            for start in self._waiting:
                start(session)
            self._waiting.clear()
