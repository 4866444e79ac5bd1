"""The launcher's loop: moves output, passes signals on, and decides what the end of a rank means for the others.

One thread, no polling: the loop sleeps until a pipe has bytes, a rank ends (pidfd), a signal arrives or a deadline
passes.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ringtune.launch.options import LaunchOptions
from ringtune.launch.rank import ABANDON_S, RankProcess
from ringtune.launch.streams import Streams

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT)
WAITING_S = 60.0
"""After so long, and again, the launcher says for which ranks it waits when others have ended with code 0; one whose
process is stopped for so long is ended."""

_UNCAUGHT = 1
"""Exit code of Python after an exception that nothing has caught."""
_NAMED = 8
_READ_BYTES = 1 << 16
_PIPE_READS = 17
"""So many reads empty a pipe: the kernel lets it hold up to 1 MiB."""


@dataclass(frozen=True)
class Failure:
    """The first rank that did not end with 0.

    Attributes:
        rank: Its rank.
        host: Its host.
        exit_code: Its exit code, 128 + number after a signal.
        after_s: Seconds from the start of the job.
        lost: What it had lost of another rank before, in words; empty: nothing that is known.
        error: The Python exception that ended it, type and message; empty: none is known.
    """

    rank: int
    host: str
    exit_code: int
    after_s: float
    lost: str = ""
    error: str = ""

    def __str__(self) -> str:
        why = f": {self.error}" if self.error else ""
        why = f", since it had lost another rank: {self.lost}" if self.lost else why
        return f"rank {self.rank} on {self.host} {how_ended(self.exit_code)}, {self.after_s:.1f} s after the start{why}"


@dataclass(frozen=True)
class Outcome:
    """How the job ended.

    Attributes:
        exit_code: The job's exit code.
        failure: The first failure, if any rank failed.
        interrupted_by: Number of the signal that asked the job to end; 0 = none.
    """

    exit_code: int
    failure: Failure | None
    interrupted_by: int


def how_ended(exit_code: int) -> str:
    """Return an exit code in words."""
    if exit_code > 128:
        with contextlib.suppress(ValueError):
            name = signal.Signals(exit_code - 128).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"was killed by {name}{hint}"
    return f"exited with code {exit_code}"


class Supervisor:
    """Watches the ranks of one job from start to end.

    Args:
        ranks: The ranks, started.
        streams: Where their output goes.
        options: The job.
        on_failure: Told of the first failure, in words, at once.
        on_end: Told of ranks that end with 0 while others run.
        lost_of: Returns what a rank that has failed had lost of another one; empty: nothing. Such a rank is no first
            failure where another one turns out to be.
    """

    _KIND = "rank"

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        streams: Streams,
        options: LaunchOptions,
        on_failure: Callable[[str], None] | None = None,
        on_end: Callable[[RankProcess], None] | None = None,
        lost_of: Callable[[int], str] | None = None,
    ) -> None:
        self._on_failure, self._on_end_well, self._lost_of = on_failure, on_end, lost_of
        self._followed: Failure | None = None
        self._say_alone_at: float | None = None
        self._running: dict[int, RankProcess] = {}
        self._streams = streams
        self._options = options
        self._started = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._signals: deque[int] = deque()
        self._failure: Failure | None = None
        self._interrupted_by = 0
        # Moments of the next escalation; each is armed by the one before.
        self._terminate_at: float | None = None
        self._kill_at: float | None = None
        self._abandon_at: float | None = None
        if options.stop_fd is not None:
            self._selector.register(options.stop_fd, selectors.EVENT_READ, (None, "stop"))
        for rank in ranks:
            self._add(rank)

    def run(self) -> Outcome:
        """Stay until every rank has ended."""
        with self._selector, self._catching_signals():
            while self._running:
                self._turn()
        return self._outcome()

    def _add(self, rank: RankProcess) -> None:
        """Watch a rank from now on."""
        self._running[rank.rank] = rank
        self._selector.register(rank.stdout, selectors.EVENT_READ, (rank, "stdout"))
        self._selector.register(rank.stderr, selectors.EVENT_READ, (rank, "stderr"))
        self._selector.register(rank.pidfd, selectors.EVENT_READ, (rank, "end"))

    def _outcome(self) -> Outcome:
        code = self._failure.exit_code if self._failure else 0
        if self._interrupted_by and self._failure:
            code = 128 + self._interrupted_by
        return Outcome(code, self._failure, self._interrupted_by)

    def _turn(self) -> None:
        ended = []
        for key, _ in self._selector.select(self._timeout()):
            if key.data is None:
                os.read(key.fd, 4096)
            elif key.data[1] == "stop":
                self._selector.unregister(key.fileobj)
                self._signals.append(signal.SIGTERM)
            elif key.data[1] == "end":
                ended.append(key.data[0])
            else:
                self._handle(*key.data)
        while self._signals:
            self._on_signal(self._signals.popleft())
        # Ends come last, so that a rank's output is printed before the launcher's message about its end.
        for rank in ended:
            self._on_end(rank)
        self._streams.flush_stale()
        self._escalate()

    def _timeout(self) -> float | None:
        moments = [
            at for at in (self._say_alone_at, self._terminate_at, self._kill_at, self._abandon_at) if at is not None
        ]
        waits = [max(0.0, at - time.monotonic()) for at in moments]
        if self._streams.waiting:
            waits.append(0.1)
        return min(waits, default=None)

    def _handle(self, source: Any, kind: str) -> None:
        """Take what a descriptor has: a rank's ``stdout`` or ``stderr``."""
        self._read(source, kind)

    def _read(self, rank: RankProcess, stream: str) -> bool:
        """Pass on what can be read now; False when there is no more, for now or for ever."""
        descriptor = rank.stdout if stream == "stdout" else rank.stderr
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._streams.feed(rank.rank, stream, rank.without_proof(data) if stream == "stderr" else data)
            return True
        with contextlib.suppress(KeyError):
            self._selector.unregister(descriptor)
        return False

    def _on_end(self, rank: RankProcess) -> None:
        if rank.exit_code() is None:
            return
        for stream in ("stdout", "stderr"):
            # What the rank has left behind may write on without end: no more is read than what a pipe holds.
            for _ in range(_PIPE_READS):
                if not self._read(rank, stream):
                    break
        self._streams.feed(rank.rank, "stderr", rank.without_proof(b"", last=True))
        code = rank.exit_code()  # with the proof of a good end, if its agent has given one
        assert code is not None
        for descriptor in (rank.stdout, rank.stderr, rank.pidfd):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        self._streams.end(rank.rank)
        del self._running[rank.rank]
        self._judge(rank, code)

    def _judge(self, rank: RankProcess, code: int) -> None:
        """Decide what the end of a rank means for the others: here the first failure ends them all."""
        if code != 0 and self._failure is None:
            self._failed(self._failure_of(rank, code))
        elif code == 0 and self._failure is None and not self._interrupted_by and self._running:
            if self._on_end_well is not None:
                self._on_end_well(rank)
            self._watch_the_rest()
        if self._followed is not None and self._failure is None and not self._running:
            self._name(self._followed)

    def _watch_the_rest(self) -> None:
        """Say in a while for whom the launcher still waits, and end who stands stopped."""
        self._say_alone_at = time.monotonic() + WAITING_S
        for one in self._running.values():
            one.end_if_stopped(WAITING_S)

    def _failed(self, failure: Failure) -> None:
        """Name the first failure. One that followed from a lost rank waits for that one until the grace ends."""
        if failure.lost and self._running:
            self._followed = self._followed or failure
            if self._terminate_at is None and not self._interrupted_by:
                self._terminate_at = time.monotonic() + self._options.failure_grace_s
            return
        self._name(failure)

    def _name(self, failure: Failure) -> None:
        self._failure, self._say_alone_at = failure, None
        if self._on_failure is not None:
            self._on_failure(str(failure))  # ranks that wait for this one in init() need not wait on
        self._after_failure()

    def _failure_of(self, rank: RankProcess, code: int) -> Failure:
        lost = self._lost_of(rank.rank) if self._lost_of is not None else ""
        error = self._streams.error_of(rank.rank) if code == _UNCAUGHT else ""
        return Failure(rank.rank, rank.slot.host, code, time.monotonic() - self._started, lost, error)

    def _after_failure(self) -> None:
        if self._interrupted_by:
            return
        others = ", ending the others" if self._running else ""
        self._streams.say(f"{self._failure}{others}")
        # The survivors notice the loss and report it first; SIGTERM follows after the grace time.
        self._terminate_at = self._terminate_at or time.monotonic() + self._options.failure_grace_s

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            # The ranks have no terminal, where the kernel ignores SIGTSTP; SIGSTOP stops them all the same.
            for rank in self._running.values():
                rank.end_if_stopped(math.inf)
            self._send(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number not in _ENDING:
            self._send(number)
        elif self._interrupted_by:
            self._streams.say(f"{signal.Signals(number).name} again, killing the ranks")
            self._kill_at = time.monotonic()
        else:
            self._interrupted_by, self._say_alone_at = number, None
            self._send(number)
            self._send(signal.SIGCONT)  # a stopped rank would not handle the signal
            self._kill_at = time.monotonic() + self._options.interrupt_grace_s
            self._streams.say(f"{signal.Signals(number).name} passed on to {len(self._running)} ranks")

    def _escalate(self) -> None:
        now = time.monotonic()
        if self._say_alone_at is not None and now >= self._say_alone_at:
            self._say_alone_at = now + WAITING_S if self._running else None
            self._say_who_runs()
        if self._terminate_at is not None and now >= self._terminate_at:
            self._terminate_at = None
            if self._failure is None and self._followed is not None:
                self._name(self._followed)
                self._terminate_at = None
            self._send(signal.SIGTERM)
            self._send(signal.SIGCONT)  # a stopped rank would not handle the signal
            self._kill_at = min(now + self._options.kill_grace_s, self._kill_at or float("inf"))
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for rank in self._running.values():
                rank.kill()
            self._abandon_at = now + ABANDON_S
        if self._abandon_at is not None and now >= self._abandon_at:
            self._abandon_at = None
            for rank in self._running.values():
                rank.kill_rank_agent()

    def _say_who_runs(self) -> None:
        """Say for whom the launcher waits: nothing else may be printed any more."""
        late, why = self._late()
        names = [f"{self._KIND} {rank.rank} on {rank.slot.host}" for rank in late[:_NAMED]]
        more = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
        if names:
            self._streams.say(f"still waiting for {', '.join(names)}{more}, since {why}")

    def _late(self) -> tuple[list[RankProcess], str]:
        """Return for whom the launcher waits, and why."""
        return list(self._running.values()), "others have ended with code 0"

    def _send(self, number: int) -> None:
        for rank in self._running.values():
            rank.send_signal(number)

    @contextlib.contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """Turn signals into events of the loop; outside the main thread Python allows none, and none is caught."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(wake, selectors.EVENT_READ, None)
        before_wakeup = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._note_signal) for number in _FORWARDED if _not_ignored(number)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_wakeup)
            os.close(wake)
            os.close(wake_write)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)


def _not_ignored(number: int) -> bool:
    """Whether a signal should be caught: under nohup SIGHUP is ignored and must stay so."""
    return signal.getsignal(number) is not signal.SIG_IGN
