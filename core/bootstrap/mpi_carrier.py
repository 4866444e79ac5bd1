"""``RINGTUNE_TRANSPORT=mpi``: the bytes between ranks travel by MPI, through mpi4py, for fabrics that only MPI reaches.

The runtime gives this module one end of a pair of sockets for each link. A thread moves what is written there to the
peer's end, by messages whose tag is the link's number. At most one message of a link is under way in each direction:
a receiver is ready for it, so nothing piles up in MPI. Negotiation and signs of life stay on TCP.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from contextlib import suppress
from os import close, eventfd, eventfd_read, eventfd_write
from typing import Any

from ringtune.bootstrap.deadline import Deadline
from ringtune.bootstrap.placement import Placement
from ringtune.errors import ConfigError, Timeout

_MESSAGE_BYTES = 1 << 20
_BUSY_S = 0.01
_BUSY_NAP_S = 20e-6
_IDLE_NAP_MS = 1
"""MPI wakes nobody: where bytes have moved within the last 10 ms it is asked every 20 us, else every millisecond."""
_END_S = 2.0
"""So long the thread goes on with what is under way when the session has closed."""

_communicators: list[Any] = []
"""The one of all sessions of this process, once there was one; links of each have numbers of their own."""


class Carrier:
    """Carries the links of one session. Its thread is the only one here that calls MPI after the start.

    Args:
        communicator: For nothing else; its ranks are the session's.
    """

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self._lock = threading.Lock()
        self._new: list[tuple[int, int, int]] = []
        self._wake = eventfd(0)
        self._end_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="ringtune-mpi", daemon=True)
        self._thread.start()

    def take(self, peer: int, number: int, descriptor: int) -> None:
        """Carry a link from now on; owns the descriptor. Any thread."""
        with self._lock:
            self._new.append((peer, number, descriptor))
        eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End the thread when what is under way has arrived, or after some seconds. Idempotent."""
        if self._end_at is None:
            self._end_at = time.monotonic() + _END_S
            eventfd_write(self._wake, 1)
            self._thread.join()
            close(self._wake)

    def _run(self) -> None:
        links: list[_Link] = []
        waits = select.poll()
        waits.register(self._wake, select.POLLIN)
        busy_until = 0.0
        try:
            while True:
                busy = time.monotonic() < busy_until
                if any(one == self._wake for one, _ in waits.poll(0 if busy else _IDLE_NAP_MS if links else None)):
                    eventfd_read(self._wake)
                with self._lock:
                    new, self._new = self._new, []
                links += [_Link(self._communicator, *one) for one in new]
                moved = [link for link in links if link.move()]
                links = [link for link in links if not link.ended]
                if moved:
                    busy_until = time.monotonic() + _BUSY_S
                elif self._end_at is not None and (all(link.idle for link in links) or time.monotonic() > self._end_at):
                    break
                elif busy:
                    time.sleep(_BUSY_NAP_S)
        except Exception as error:  # MPI's own; the links end, and the runtime tells that it has lost its peers
            print(f"ringtune: MPI carries nothing any more: {error}", file=sys.stderr, flush=True)
        for link in links:
            link.abandon()


class _Link:
    """One link: at most one message to the peer and one from it are under way."""

    def __init__(self, communicator: Any, peer: int, number: int, descriptor: int) -> None:
        from mpi4py import MPI

        self._communicator, self._peer = communicator, peer
        self._tag = number % communicator.Get_attr(MPI.TAG_UB)
        self._byte, self._status = MPI.BYTE, MPI.Status()
        self._socket = socket.socket(fileno=descriptor)
        self._own_end = self._peer_end = False
        self._sending: Any = None
        self._sent = b""  # held while it is under way
        self._into = bytearray(_MESSAGE_BYTES)
        self._rest = memoryview(b"")  # received, and not yet taken by the runtime
        self._receiving = self._receive()

    @property
    def ended(self) -> bool:
        """Whether both sides have closed the link and know it of each other."""
        if not (self._own_end and self._peer_end and self._sending is None):
            return False
        self._socket.close()
        return True

    @property
    def idle(self) -> bool:
        """Whether nothing of this side is under way."""
        return self._sending is None

    def move(self) -> bool:
        """Move what can be moved now; whether anything could."""
        out = self._move_out()
        return self._move_in() or out

    def abandon(self) -> None:
        """Let go of what will not arrive any more."""
        if not self._peer_end and not self._rest:
            with suppress(Exception):  # MPI may refuse by now
                self._receiving.Cancel()
                self._receiving.Wait()
        self._socket.close()

    def _move_out(self) -> bool:
        if self._sending is not None:
            if not self._sending.Test():
                return False
            self._sending = None
        if self._own_end:
            return False
        try:
            self._sent = self._socket.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # the runtime has closed its end while bytes for it were unread
            self._sent = b""
        self._own_end = not self._sent  # an empty message says so
        message = [self._sent, len(self._sent), self._byte]
        self._sending = self._communicator.Issend(message, dest=self._peer, tag=self._tag)
        return True

    def _move_in(self) -> bool:
        if self._peer_end:
            return False
        if not self._rest:
            if not self._receiving.Test(self._status):
                return False
            self._rest = memoryview(self._into)[: self._status.Get_count(self._byte)]
            if not self._rest:
                self._peer_end = True
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
                return True
        try:
            self._rest = self._rest[self._socket.send(self._rest) :]
        except BlockingIOError:
            return False
        except OSError:  # the runtime has closed its end: nobody wants the bytes
            self._rest = self._rest[:0]
        if not self._rest:
            self._receiving = self._receive()
        return True

    def _receive(self) -> Any:
        return self._communicator.Irecv([self._into, _MESSAGE_BYTES, self._byte], source=self._peer, tag=self._tag)


def start(placement: Placement, deadline: Deadline) -> Carrier:
    """Return what carries the links of a session; all ranks call it.

    Raises:
        ConfigError: There is no MPI here whose ranks are the job's, or it does not allow several threads.
        Timeout: Not all ranks came.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: it finds no MPI library
        raise ConfigError(f"RINGTUNE_TRANSPORT=mpi needs mpi4py and an MPI library: {error}") from None
    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (placement.rank, placement.size):
        raise ConfigError(
            f"RINGTUNE_TRANSPORT=mpi: rank {placement.rank} of {placement.size} (from {placement.launcher}) is rank "
            f"{world.Get_rank()} of {world.Get_size()} in mpi4py's MPI: start the job with mpirun of that MPI"
        )
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise ConfigError(
            "RINGTUNE_TRANSPORT=mpi needs an MPI that several threads may call (MPI_THREAD_MULTIPLE), and it was "
            "begun without: leave mpi4py.rc.thread_level as it is, or call MPI_Init_thread for it"
        )
    if not _communicators:
        copy, meeting = world.Idup()
        while not meeting.Test():
            if deadline.passed:
                raise Timeout(
                    "not all ranks came to MPI in time: did all of them call init()? (RINGTUNE_START_TIMEOUT)"
                )
            time.sleep(0.001)
        _communicators.append(copy)
    return Carrier(_communicators[0])
