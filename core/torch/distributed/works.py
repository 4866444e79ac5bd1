"""Operations of a process group that are under way."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringtune.errors import RingtuneError, Timeout
from ringtune.session import Session
from ringtune.torch.distributed import streams
from ringtune.torch.distributed.futures import Promise, asked_by_compression, completed, passes
from ringtune.torch.distributed.profiling import OpenSpan, seen_by_profiler
from ringtune.torch.distributed.traced import COMMUNICATE, WAIT, TracedMessage

_SLICE_NS = 100_000_000
_ANSWER_NS = 300_000_000
"""How long rank 0 has to say which ranks an operation waits for."""


class Work(dist._Work):  # type: ignore[name-defined,misc]
    """One operation. `wait` may be called by any thread, any number of times.

    Of tensors on a GPU, `wait` returns when the result is on its way and makes the current stream wait for the rest;
    `is_completed` asks the GPU.

    Args:
        session: Whose runtime runs the operation.
        tickets: Its tickets.
        outputs: Tensors that hold the result.
        finish: Called once when all tickets are done; moves results to where they belong.
        keep: Buffers the runtime reads or writes, one or several.

    Attributes:
        comes_after_backward: The end of a backward pass settles it at the latest.
        name: Of the operation.
        kind: What the profiler of PyTorch calls it; empty for a work made of others, which are profiled themselves.
        explain: Returns a failure of the runtime with what the runtime does not know of the operation.
        forget: Called once at the end; the group then drops the work and its tensors.
    """

    def __init__(
        self,
        session: Session | None,
        tickets: Sequence[int],
        outputs: Sequence[torch.Tensor],
        finish: Callable[[], None] | None = None,
        keep: Any = None,
    ) -> None:
        super().__init__()
        self._session = session
        self._tickets = list(tickets)
        self._outputs = list(outputs)
        self._finish = finish
        self._keep = keep
        self._gpu = streams.gpu_of((*outputs, keep))
        self._arrival: streams.Arrival | None = None
        self._lock = threading.Lock()
        self._done = False
        self._failure: BaseException | None = None
        self._future: Any = None
        self._resolved = False
        self.comes_after_backward = False
        self.name = "an operation"
        self.kind = ""
        self._span: OpenSpan | None = None
        self.explain: Callable[[RingtuneError], RingtuneError] | None = None
        self.forget: Callable[[], object] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the result is there; on a GPU: until the current stream will find it.

        Raises:
            RuntimeFailure: The operation failed.
            Timeout: It is not done in time; it goes on.
        """
        limit = None if timeout is None or timeout <= timedelta(0) else timeout.total_seconds()
        left = limit
        while not self._done and not self._settle(left):
            if (error := self._not_yet(limit)) is not None:
                raise error
            left = 0.0
        if self._failure is not None:
            raise self._failure
        if self._arrival is not None:
            self._arrival.await_here()
        return True

    def is_completed(self) -> bool:
        """Return whether the result is there; on a GPU: in its memory."""
        if self._gpu is None:
            return self._ready()
        if not self._done and self._ready():
            self._settle(None)
        return self._done and (self._arrival is None or self._arrival.reached())

    def is_success(self) -> bool:
        """Return whether the operation is done and did not fail."""
        return self.is_completed() and (not self._done or self._failure is None)

    def exception(self) -> BaseException | None:
        """Return the failure of a finished operation."""
        return self._failure

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold the result."""
        return self._outputs

    def get_future(self) -> Any:
        """Return a future of the result; completed without a waiter.

        Within a backward pass its end completes it, on the thread that called ``backward``, where DDP waits for its
        futures next. For torch's own hook FP16_COMPRESS it is waited for here.
        """
        if asked_by_compression(self._outputs):
            self.wait()
            return completed(self._outputs)
        with self._lock:
            if self._future is not None:
                return self._future
            self.comes_after_backward = passes.add(self._complete)
            if self.comes_after_backward and self._gpu is None and not self._done:
                self._span = OpenSpan(seen_by_profiler(self.kind, self._keep, self._outputs))
                self.kind = ""
            self._future = Promise(self._complete, self.comes_after_backward, streams.future_devices(self._gpu))
            done = self._done
        if done:
            self._resolve()
        else:
            _completer.add(self)
        return self._future

    def _complete(self) -> None:
        """Settle on this thread, and let callbacks of the future go on."""
        self.settle()
        if self._span is not None:
            self._span.end()
        self._resolve()
        self._future.go_on()
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Wait until the operation is done or has failed; the current stream waits for nothing."""
        if not self._done:
            self._settle(None)

    def attend(self) -> None:
        """Wait until the operation is done or has failed, without asking for it: it may be held back for a caller."""
        for ticket in self._tickets:
            try:
                while not self._done and not self._session.attend(ticket, _SLICE_NS):  # type: ignore[union-attr]
                    pass
            except RingtuneError:  # settled and released meanwhile
                return

    def _ready(self) -> bool:
        session = self._session
        return self._done or session is None or session.closed or all(session.poll(ticket) for ticket in self._tickets)

    def _settle(self, limit_s: float | None) -> bool:
        """Wait, at most so long; whether it is done or has failed."""
        with streams.working_on(self._gpu), seen_by_profiler(self.kind, self._keep, self._outputs):
            if not self._wait_tickets(limit_s):
                return False
            self._end()
        # Without the lock: callbacks of the future may start and wait for other works.
        if self._future is not None:
            self._resolve()
        return True

    def _not_yet(self, limit_s: float | None) -> RingtuneError | None:
        """Return the error of a wait that was too short, None if what it waited for has ended since.

        The time of the group may end with that of the wait, and its error names the missing ranks.
        """
        ranks = self._awaited()
        if not ranks and self._ready():
            return None
        waits = f" and waits for rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else ""
        error = Timeout(f"{self.name} was not done within the {limit_s:g} s of wait(timeout){waits}; it goes on")
        return self.explain(error) if self.explain else error

    def _awaited(self) -> list[int]:
        """Return which ranks have not come yet, as far as that is known."""
        for ticket in self._tickets if self._session is not None else ():
            with suppress(RingtuneError):
                if ranks := self._session.awaited(ticket, _ANSWER_NS):  # type: ignore[union-attr]
                    return ranks
        return []

    def _end(self) -> None:
        """Move the results into the outputs, after what the current stream waits for."""
        with self._lock:
            if self._done:
                return
            try:
                if self._failure is None:
                    self._bring()
            except RingtuneError as error:
                self._failure = error
            finally:
                if self._session is not None and not self._session.closed:
                    for ticket in self._tickets:
                        self._session.release(ticket)
                self._keep = self._finish = None
                if self.forget is not None:
                    self.forget()
                self._record_end()
                self._done = True

    def _record_end(self) -> None:
        """Record that it is over where its session does not do so itself; called once."""

    def _bring(self) -> None:
        if self._gpu is not None and self._session is not None:
            streams.join(self._session, self._tickets, self._gpu)
        if self._finish is not None:
            self._finish()
        if self._gpu is not None:
            kept = self._keep if isinstance(self._keep, tuple) else (self._keep,)
            self._arrival = streams.Arrival(self._gpu, (*self._outputs, *kept))

    def _wait_tickets(self, limit_s: float | None) -> bool:
        if self._session is None:
            return True
        for ticket in self._tickets:
            try:
                if limit_s is None:
                    self._session.wait(ticket)
                elif not self._session.wait_for(ticket, int(limit_s * 1e9)):
                    return False
            except RingtuneError as error:
                with self._lock:
                    if self._done:  # another thread has settled it and released the ticket meanwhile
                        return True
                    self._failure = self._failure or (self.explain(error) if self.explain else error)
        return True

    def _resolve(self) -> None:
        with self._lock:
            resolved, self._resolved = self._resolved, True
        if resolved:
            return
        if self._failure is not None:
            self._future.set_exception(self._failure)
            return
        with streams.working_on(self._gpu):  # on whose current stream the future's event is recorded
            if self._arrival is not None:
                self._arrival.await_here()
            self._future.set_result(self._outputs)


class _Completer:
    """Completes futures in the order in which they were asked for, on one thread that starts when it is needed."""

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, work: Work) -> None:
        """Complete the work's future when its operation is done."""
        self._works.put(work)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="ringtune-futures", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            work = self._works.get()
            try:
                if work.comes_after_backward:
                    work.attend()
                work.settle()
            except BaseException as error:
                # The future carries the failure to its waiters.
                if not work._done:
                    work._future.set_exception(error)


_completer = _Completer()


class Several(Work):
    """Several operations as one, all on the same device."""

    def __init__(self, works: Sequence[Work], outputs: list[torch.Tensor]) -> None:
        super().__init__(None, [], outputs)
        self._works = list(works)
        self._gpu = next((work._gpu for work in works), None)

    def _ready(self) -> bool:
        return self._done or all(work._ready() for work in self._works)

    def attend(self) -> None:
        """Wait until all are done or have failed, without asking for them."""
        for work in self._works:
            work.attend()

    def _wait_tickets(self, limit_s: float | None) -> bool:
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        for work in self._works:
            if not work._done and not work._settle(deadline_s and max(0.0, deadline_s - time.monotonic())):
                return False
            self._failure = self._failure or work._failure
            if work._arrival is not None:
                work._arrival.await_here()
        return True

    def _not_yet(self, limit_s: float | None) -> RingtuneError | None:
        return next((work for work in self._works if not work._done), self._works[0])._not_yet(limit_s)


class Delivery(Work):
    """A send or receive, which may not have reached the runtime yet.

    Attributes:
        begin_ns: When it was asked for.
        traced: How it stands in the timeline.
    """

    def __init__(self, outputs: list[torch.Tensor], tensor: torch.Tensor, output: torch.Tensor | None) -> None:
        finish = None if output is None or output is tensor else lambda: copy(output, tensor)
        super().__init__(None, [], outputs, finish, tensor)
        self._known = threading.Event()
        self.begin_ns = time.monotonic_ns()
        self.traced: TracedMessage | None = None

    def submitted(self, session: Session | None, ticket: Any) -> None:
        """Take session and ticket, or None and the failure."""
        if session is None:
            self._failure = self.explain(ticket) if self.explain else ticket
        else:
            self._session, self._tickets = session, [ticket]
        self._known.set()

    def attend(self) -> None:
        """Wait until it is done or has failed, without asking for it."""
        self._known.wait()
        super().attend()

    def look(self, limit_ns: int) -> bool:
        """Return whether it is done or has failed within a time, without settling it."""
        if self._done or not self._known.wait(limit_ns / 1e9):
            return self._done
        if self._session is None or self._session.closed:
            return True
        try:
            return self._session.wait_for(self._tickets[0], limit_ns)
        except RingtuneError:
            return True

    def _ready(self) -> bool:
        return self._known.is_set() and super()._ready()

    def _wait_tickets(self, limit_s: float | None) -> bool:
        began_ns, waits = time.monotonic_ns(), self.traced is not None and not self._ready()
        done = self._known.wait(limit_s) and super()._wait_tickets(limit_s)
        if waits and self.traced is not None:
            self.traced.record(WAIT, began_ns, time.monotonic_ns())
        return done

    def _record_end(self) -> None:
        if self.traced is not None and self._failure is None:
            self.traced.record(COMMUNICATE, self.begin_ns, time.monotonic_ns())


def then(work: Work, outputs: list[torch.Tensor], finish: Any) -> Work:
    """Return the work with other outputs and one more step at its end."""
    several = Several([work], outputs)
    several._finish = finish
    return several


@torch.no_grad()
def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Overwrite a tensor without a trace in autograd."""
    target.copy_(source)
