"""Threads that answer requests: the one that rested last answers next.

waitress's own dispatcher wakes them in turn. A page of a running job asks once in a while, and each time another thread
would find its memory in no cache any more, which is a tenth of the cost of watching.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Protocol

_log = logging.getLogger("waitress")


class Task(Protocol):
    """A task of waitress's."""

    def service(self) -> None:
        """Answer."""

    def cancel(self) -> None:
        """Give up without an answer."""


class _Worker(threading.Thread):
    """A thread with one task at a time."""

    def __init__(self, dispatcher: LastFirstDispatcher, number: int) -> None:
        super().__init__(daemon=True, name=f"waitress-{number}")
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._dispatcher = dispatcher

    def sleep(self) -> None:
        """Wait until `wake` is called, or was called."""
        self._asleep.acquire()

    def wake(self) -> None:
        """Let the thread go on; once for every `sleep`."""
        self._asleep.release()

    def run(self) -> None:
        while (task := self._dispatcher.next_task(self)) is not None:
            try:
                task.service()
            except BaseException:  # an error must not end the thread
                _log.exception("Exception when servicing %r", task)


class LastFirstDispatcher:
    """Takes tasks in the order in which they come; in place of `waitress.task.ThreadedTaskDispatcher`."""

    def __init__(self, threads: int) -> None:
        self._lock = threading.Lock()
        self._tasks: deque[Task] = deque()
        self._idle: list[_Worker] = []
        self._ending = False
        self._workers = [_Worker(self, number) for number in range(threads)]
        for worker in self._workers:
            worker.start()

    @property
    def idle_count(self) -> int:
        """How many threads wait for a task."""
        with self._lock:
            return len(self._idle)

    def add_task(self, task: Task) -> None:
        """Have a task done by a thread."""
        with self._lock:
            self._tasks.append(task)
            if self._idle:
                self._idle.pop().wake()

    def next_task(self, worker: _Worker) -> Task | None:
        """Wait for the next task of a thread; None when it is to end."""
        while True:
            with self._lock:
                if self._ending:
                    return None
                if self._tasks:
                    return self._tasks.popleft()
                self._idle.append(worker)
            worker.sleep()

    def shutdown(self, cancel_pending: bool = True, timeout: float = 5) -> bool:
        """Let threads end when they have done their tasks, and wait for that; return whether all have."""
        with self._lock:
            self._ending = True
            while self._idle:
                self._idle.pop().wake()
            pending = list(self._tasks) if cancel_pending else []
            self._tasks.clear()
        until = time.monotonic() + timeout
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))
        for task in pending:
            task.cancel()
        return not any(worker.is_alive() for worker in self._workers)
