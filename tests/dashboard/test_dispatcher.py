"""The threads that answer requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ringtune.dashboard.dispatcher import LastFirstDispatcher

MOST_S = 20.0


class Job:
    """A task that notes who did it, and may stop at a gate."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        self.act = act
        self.by = ""
        self.cancelled = False
        self.begun, self.done = threading.Event(), threading.Event()

    def service(self) -> None:
        self.by = threading.current_thread().name
        self.begun.set()
        try:
            self.act()
        finally:
            self.done.set()

    def cancel(self) -> None:
        self.cancelled = True


def wait_idle(dispatcher: LastFirstDispatcher, count: int) -> None:
    until = time.monotonic() + MOST_S
    while dispatcher.idle_count != count:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_requests_one_after_the_other_are_answered_by_one_thread() -> None:
    dispatcher = LastFirstDispatcher(4)
    wait_idle(dispatcher, 4)
    names = set()
    for _ in range(20):
        job = Job()
        dispatcher.add_task(job)
        assert job.done.wait(MOST_S)
        wait_idle(dispatcher, 4)
        names.add(job.by)
    assert len(names) == 1
    assert dispatcher.shutdown()


def test_as_many_at_once_as_there_are_threads_and_the_rest_in_order() -> None:
    dispatcher, gate, order = LastFirstDispatcher(3), threading.Event(), list[int]()
    held = [Job(lambda: gate.wait(MOST_S) and None) for _ in range(3)]
    for job in held:
        dispatcher.add_task(job)
    assert all(job.begun.wait(MOST_S) for job in held)
    assert len({job.by for job in held}) == 3
    alone = LastFirstDispatcher(1)
    queued = [Job(lambda number=number: order.append(number)) for number in range(50)]  # type: ignore[misc]
    for job in queued:
        alone.add_task(job)
    assert all(job.done.wait(MOST_S) for job in queued)
    assert order == list(range(50))
    gate.set()
    assert dispatcher.shutdown()
    assert alone.shutdown()


def test_a_task_that_fails_costs_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("so it is")

    dispatcher = LastFirstDispatcher(1)
    dispatcher.add_task(Job(fail))
    after = Job()
    dispatcher.add_task(after)
    assert after.done.wait(MOST_S)
    assert dispatcher.shutdown()
    assert "so it is" in caplog.text


def test_shutdown_lets_what_runs_end_and_cancels_what_waits() -> None:
    dispatcher, gate = LastFirstDispatcher(1), threading.Event()
    running, waiting = Job(lambda: gate.wait(MOST_S) and None), Job()
    dispatcher.add_task(running)
    assert running.begun.wait(MOST_S)
    dispatcher.add_task(waiting)
    assert not dispatcher.shutdown(timeout=0.01)  # it still runs
    assert waiting.cancelled and not waiting.begun.is_set()
    gate.set()
    assert running.done.wait(MOST_S)
    assert dispatcher.shutdown(timeout=MOST_S)


def test_no_task_is_lost_under_many_callers() -> None:
    dispatcher, jobs = LastFirstDispatcher(4), [Job() for _ in range(2000)]

    def give(part: list[Job]) -> None:
        for job in part:
            dispatcher.add_task(job)

    callers = [threading.Thread(target=give, args=(jobs[number::4],)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(MOST_S)
    assert all(job.done.wait(MOST_S) for job in jobs)
    assert dispatcher.shutdown()
