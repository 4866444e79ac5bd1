"""Futures of works, and what happens at the end of a backward pass."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from ringtune.errors import RingtuneError

_PASSES_KEPT = 32  # backward passes may be concurrent and nested

_OURS = __name__.rpartition(".")[0]
_Future: Any = torch.futures.Future


def asked_by_compression(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether DDP's built-in hook FP16_COMPRESS may be asking for a future of these tensors.

    This hook alone checks the type of a future's value in C++, and accepts none that Python has completed. Its tensors
    are float16, and the innermost frame of Python is the one that runs backward: a caller in Python would be inside it.
    """
    if not tensors or tensors[0].dtype != torch.float16 or torch._C._current_graph_task_id() == -1:
        return False
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is None or frame.f_globals.get("__name__") == torch.autograd.graph.__name__


def completed(tensors: list[torch.Tensor]) -> Any:
    """Return a future that holds tensors as a value whose type C++ knows."""
    return torch.jit.fork(lambda: tensors)


class _Failed:
    """The value of a failed future: any use of it raises.

    A future that Python completes always holds a value for torch's C++, which knows no failure of Python's. DDP pickles
    that value in search of tensors and, after a hook of Python's, prints one that is none; both raise the failure here.

    Args:
        error: Why there is no value.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self._error

    def __str__(self) -> str:
        raise self._error


class Promise(_Future):  # type: ignore[misc]
    """A future whose `wait` helps the runtime, on the thread that waits.

    One that a backward pass has started keeps callbacks back until the pass is over or a thread waits: they may start
    further collectives, as PowerSGD's do, and those must come in the same order on all ranks, however fast each is.

    Args:
        complete: Makes sure that the future has its result, and runs the callbacks that were kept back.
        keeps: Whether callbacks are kept back.
        devices: GPUs of the result: the waiter's current streams wait for the work of the streams that were
            current when the future got its result; callbacks run in such streams.
    """

    def __init__(self, complete: Callable[[], None], keeps: bool, devices: list[torch.device] | None = None) -> None:
        super().__init__(devices=devices)
        self._complete = complete
        self._devices = devices
        self._keeps = keeps
        self._kept: list[Callable[[], None]] = []

    def wait(self) -> Any:
        """Return the result; raises what the operation raised."""
        self._complete()
        return super().wait()

    def set_exception(self, error: BaseException) -> None:
        """Complete it by a failure, which `wait`, `value` and any use of the value in C++ raise."""

        def unwrap(_: Any) -> None:
            raise error

        self._set_unwrap_func(unwrap)
        self.set_result(_Failed(error))

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """Return the future of what the callback returns when it is called with this one."""
        if not self._keeps:
            return super().then(callback)
        child = Promise(self._complete, True, self._devices)

        def answer() -> None:
            try:
                child.set_result(callback(self))
            except Exception as error:
                child.set_exception(error)
            child.go_on()

        self._kept.append(answer)
        return child

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back with this future when it is done."""
        if self._keeps:
            self._kept.append(lambda: callback(self))
        else:
            super().add_done_callback(callback)

    def go_on(self) -> None:
        """Mark it done and stop holding callbacks back."""
        with suppress(Exception):  # its own callbacks read this
            super().wait()  # another thread may be about to set the result
        self._keeps = False
        while self._kept:
            self._kept.pop(0)()


class _Passes:
    """What the backward passes of this process have started, to be completed at their end.

    torch gives no sign when DDP waits for a future, and the runtime leaves a collective to the waiting thread where no
    core is free for it: the end of backward is where DDP waits. Hooks of one pass may
    run on several threads, one for each device, and its end on any of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[int, list[Callable[[], None]]] = {}
        self._thread = threading.local()

    def add(self, complete: Callable[[], None]) -> bool:
        """Complete something at the end of the pass that runs now; False outside of one.

        What is started after the last gradient belongs to no pass: DDP reduces the first step of a static graph there,
        and waits at once.
        """
        task = torch._C._current_graph_task_id()
        if task == -1 or torch._C._current_autograd_node() is None or getattr(self._thread, "ending", False):
            return False
        with self._lock:
            if task not in self._started:
                if len(self._started) == _PASSES_KEPT:  # a pass that fails never calls back
                    del self._started[next(iter(self._started))]
                self._started[task] = []
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(lambda: self._ended(task))
            self._started[task].append(complete)
        return True

    def _ended(self, task: int) -> None:
        self._thread.ending = True
        try:
            with self._lock:
                started = self._started.pop(task, [])
            for complete in started:
                with suppress(RingtuneError):  # the future carries it
                    complete()
        finally:
            self._thread.ending = False


passes = _Passes()
