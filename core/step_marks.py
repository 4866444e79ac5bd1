"""Ends of training steps: marked by an optimizer or the script, else detected from operations that repeat.

Where a run folder is written, the native runtime watches what the training thread submits until a step is marked
(``native/runtime/step_watch.h``); from then on only marks count. Steps that end in a framework's compiled program are
counted there, without Python, and reported by a thread of their own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from ringtune import native
from ringtune.runtime import Runtime
from ringtune.stats import StepStats


class StepMarks:
    """The steps of one session.

    Args:
        runtime: The session's runtime, borrowed.
        ended: Called with every step.
    """

    def __init__(self, runtime: Runtime, ended: Callable[[StepStats], None]) -> None:
        self._runtime, self._ended = runtime, ended
        self._marked = self._watching = False
        self._follower: threading.Thread | None = None

    def watch(self) -> None:
        """Watch the calling thread's operations, unless steps are marked."""
        if self._marked or self._watching:
            return
        self._watching = True
        if self._follower is not None:
            self._runtime.follow_framework_steps(True)
        mine = weakref.WeakMethod(self._repeated)  # a strong reference would form a cycle with the runtime

        def tell() -> None:
            repeated = mine()
            if repeated is not None:
                repeated()

        self._runtime.watch_steps(tell)

    def follow_programs(self) -> None:
        """Count the steps that end in a framework's programs from now on."""
        if self._follower is None:
            self._runtime.follow_framework_steps(self._watching)
            self._follower = threading.Thread(target=self._follow, name="ringtune-steps", daemon=True)
            self._follower.start()

    def stop(self) -> None:
        """Watch no longer."""
        if self._watching:
            self._watching = False
            self._runtime.watch_steps(None)

    def close(self) -> None:
        """Watch no longer, and count no step in programs any more; those that have ended are reported before."""
        self.stop()
        if self._follower is not None:
            self._runtime.stop_framework_steps()
            self._follower.join()
            self._follower = None

    def end(self) -> StepStats:
        """End a step that an optimizer or the script marks."""
        self._marked = True
        self.stop()
        return self._end(detected=False)

    def _repeated(self) -> None:
        self._end(detected=True)

    def _end(self, *, detected: bool) -> StepStats:
        with native.translated():
            stats = StepStats.from_dict({**self._runtime.end_step(not detected), "detected": detected})
        self._ended(stats)
        return stats

    def _follow(self) -> None:
        while (found := self._runtime.next_framework_step()) is not None:
            self._ended(StepStats.from_dict({**found, "detected": bool(found["detected"])}))
