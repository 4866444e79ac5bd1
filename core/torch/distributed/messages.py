"""Sends and receives between ranks of a process group: each pair of ranks has a session of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from ringtune.errors import InvalidArgument, RingtuneError, Timeout
from ringtune.operations import Broadcast
from ringtune.session import Session
from ringtune.torch.devices import device_of
from ringtune.torch.distributed.members import Meeting, open_group
from ringtune.torch.distributed.memory import as_numbers, contents, source, target
from ringtune.torch.distributed.traced import WORLD_LABEL, GroupLabel, MessageNumbers, TracedMessage
from ringtune.torch.distributed.works import Delivery, Work, copy, then
from ringtune.torch.handles import dtype_number
from ringtune.torch.memory_check import is_own
from ringtune.torch.steps import communicated

_LOOK_NS = 1_000_000
"""How long a receive without a source waits for one peer before it looks at the others again."""

Submitted = Callable[[Session | None, Any], None]


class Pair:
    """Sends to and receives from one peer: a session of two, in which a send is a broadcast.

    Opened by a thread, because the two ranks need not get here at the same time; operations are submitted in the
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

    def start(self, tensor: torch.Tensor, tag: int, sends: bool, limit_ns: int, submitted: Submitted) -> None:
        """Send or receive a contiguous tensor.

        Args:
            tensor: What is sent, or where it goes.
            tag: Tag that both sides give.
            sends: Whether this rank sends.
            limit_ns: How long it may wait for the peer; 0: for ever.
            submitted: Called with session and ticket, or with None and the failure, from any thread.
        """
        from_low = sends == self._low
        number, device = dtype_number(tensor), device_of(tensor)

        def submit(session: Session) -> None:
            count = self._counts.get((from_low, tag), 0)
            self._counts[from_low, tag] = count + 1
            name = f"p2p.{'up' if from_low else 'down'}.{tag}.{count}"
            address = tensor.data_ptr()
            root, shape = 0 if from_low else 1, tuple(tensor.shape)
            ticket = session.submit(
                Broadcast(name, address, address, shape, number, root, device=device, timeout_ns=limit_ns)
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
        """Close; the peer need not take part."""
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


class Messages:
    """The sends and receives of a group.

    Args:
        meeting: Where its ranks meet.
        name: Name of the group.
        session: Session of the group.
        timeout_ns: How long a message may wait for its peer.

    Attributes:
        timeout_ns: The same, for messages to come.
        label: How the group is called in the timeline.
    """

    label: GroupLabel = WORLD_LABEL

    def __init__(self, meeting: Meeting, name: str, session: Session, timeout_ns: int) -> None:
        self._meeting = meeting
        self._name = name
        self._numbers = MessageNumbers(name)
        self._rank, self._size = session.rank, session.size
        self.timeout_ns = timeout_ns
        self._lock = threading.Lock()
        self._pairs: dict[int, Pair] = {}
        # Receives posted for any source, whose message came from another rank first.
        self._posted: dict[tuple[int, int], Delivery] = {}

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        """Send a tensor to a rank of the group."""
        memory = as_numbers(contents(source(tensor, "send")).detach())
        work = Delivery([tensor], memory, None)
        self._start(work, memory, (peer, tag), True)
        return work

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        """Receive a tensor from a rank of the group."""
        tensor = target(tensor, "recv")
        with self._lock:
            posted = self._posted.pop((peer, tag), None)
        if posted is not None:
            posted.begin_ns = time.monotonic_ns()
            return _taken(posted, tensor, f"from rank {peer}")
        own = is_own(tensor)
        memory = tensor.detach() if own else tensor.new_empty(tensor.shape)
        work = Delivery([tensor], memory, memory if own else tensor)
        self._start(work, as_numbers(memory), (peer, tag), False)
        return work

    def receive_from_any(self, tensor: torch.Tensor, tag: int) -> Work:
        """Receive a tensor from whichever rank sends first."""
        return AnyDelivery(self, target(tensor, "recv"), tag, self.timeout_ns)

    def posted(self, like: torch.Tensor, tag: int) -> dict[int, Delivery]:
        """Return a receive from every other rank, begun if there was none, by rank."""
        found = {}
        for peer in range(self._size):
            if peer == self._rank:
                continue
            with self._lock:
                work = self._posted.get((peer, tag))
                if work is None:
                    scratch = like.new_empty(like.shape)
                    work = self._posted[peer, tag] = Delivery([scratch], scratch, scratch)
                    fresh = True
                else:
                    fresh = False
            if fresh:
                self._start(work, as_numbers(work.result()[0]), (peer, tag), False, limit_ns=0)
            found[peer] = work
        return found

    def take(self, peer: int, tag: int, work: Delivery) -> bool:
        """Take a receive that `posted` has returned; False when another receive has taken it."""
        with self._lock:
            if self._posted.get((peer, tag)) is not work:
                return False
            del self._posted[peer, tag]
            return True

    def close(self) -> None:
        """Close; the peers need not take part."""
        with self._lock:
            pairs = list(self._pairs.values())
            self._pairs.clear()
            self._posted.clear()
        for pair in pairs:
            pair.close()

    def _start(
        self, work: Delivery, tensor: torch.Tensor, where: tuple[int, int], sends: bool, limit_ns: int | None = None
    ) -> None:
        communicated()
        peer, tag = where
        verb = "send to" if sends else "recv from"
        if not 0 <= peer < self._size or peer == self._rank:
            raise InvalidArgument(f"rank {self._rank} cannot {verb} rank {peer} of {self._size}")
        with self._lock:
            pair = self._pairs.get(peer)
            if pair is None:
                pair = self._pairs[peer] = self._open_pair(peer)
        work.name, work.kind = f"{verb} rank {peer}, tag {tag}", "send" if sends else "recv"
        ends = (self._rank, peer) if sends else (peer, self._rank)
        work.traced = TracedMessage(self.label, tensor, peer, sends, self._numbers.next(*ends, tag))
        said = f"{work.name} [group '{self._name}', rank {self._rank}]"
        work.explain = lambda error: type(error)(f"{said}: {error}")
        pair.start(tensor, tag, sends, self.timeout_ns if limit_ns is None else limit_ns, work.submitted)

    def _open_pair(self, peer: int) -> Pair:
        low, high = sorted((self._rank, peer))
        index = 0 if self._rank == low else 1
        name = f"{self._name}.pair.{low}.{high}"
        return Pair(lambda: open_group(self._meeting, name, (index, 2), self.timeout_ns), index == 0)


class AnyDelivery(Work):
    """A receive from whichever rank sends first.

    Every other rank has one receive posted for it; those that lose stay posted for the next receive of their tag.

    Args:
        messages: Of the group.
        tensor: Where it goes.
        tag: Tag that the sender gives.
        timeout_ns: How long it may wait.
    """

    def __init__(self, messages: Messages, tensor: torch.Tensor, tag: int, timeout_ns: int) -> None:
        super().__init__(None, [], [tensor])
        self._messages = messages
        self._tag = tag
        self._timeout_ns = timeout_ns
        self._begin_ns = time.monotonic_ns()
        self._deadline_ns = self._begin_ns + timeout_ns
        self._source = -1
        self._taking = threading.Lock()
        messages.posted(tensor, tag)

    def _source_rank(self) -> int:
        """Return the rank that has sent it."""
        return self._source

    source_rank = _source_rank

    def attend(self) -> None:
        """Wait until it is done or has failed."""
        self.settle()

    def _ready(self) -> bool:
        return self._done or self._look()

    def _wait_tickets(self, limit_s: float | None) -> bool:
        limit_ns = self._deadline_ns
        if limit_s is not None:
            limit_ns = min(limit_ns, time.monotonic_ns() + int(limit_s * 1e9))
        while not self._done and not self._look():
            now_ns = time.monotonic_ns()
            if now_ns >= self._deadline_ns:
                self._failure = Timeout(
                    f"recv without a source, tag {self._tag}: none of the other ranks of the group has sent within "
                    f"{self._timeout_ns / 1e9:g} s"
                )
                return True
            if now_ns >= limit_ns:
                return False
            for work in self._messages.posted(self._outputs[0], self._tag).values():
                if work.look(_LOOK_NS):
                    break
        return True

    def _look(self) -> bool:
        """Take the first message that has come, if there is one."""
        with self._taking:
            if self._source >= 0:
                return True
            for peer, work in self._messages.posted(self._outputs[0], self._tag).items():
                if work.look(0) and self._messages.take(peer, self._tag, work):
                    work.begin_ns = max(work.begin_ns, self._begin_ns)
                    try:
                        _taken(work, self._outputs[0], f"from any rank, sent by rank {peer}").wait()
                    except RingtuneError as error:
                        self._failure = error
                    self._source = peer
                    return True
        return False


def _taken(posted: Delivery, tensor: torch.Tensor, said: str) -> Work:
    """Return the work of a receive that was begun before anybody knew where its message goes."""
    scratch = posted.result()[0]
    if scratch.numel() != tensor.numel() or scratch.dtype != tensor.dtype:
        raise InvalidArgument(
            f"recv {said}: an earlier receive without a source expects {scratch.numel()} elements of {scratch.dtype} "
            f"under this tag, this one {tensor.numel()} of {tensor.dtype}: give messages of another kind another tag"
        )
    return then(posted, [tensor], lambda: copy(tensor, scratch.view(tensor.shape)))
