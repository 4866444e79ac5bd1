"""Measuring one setting after another in a running job: changes of knobs, discarded steps, time lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from statistics import median
from typing import TypeAlias

from ringtune.errors import InvariantError
from ringtune.knobs import Knobs
from ringtune.tuner.feed import Sample

Steps: TypeAlias = "Generator[Knobs | None, Sample, None]"

_REFERENCE_STEPS = 20


class Meter:
    """Runs settings in a job, for generators that ``yield`` knobs (or None) and receive the next `Sample`.

    Args:
        default: The setting the job runs with at the beginning.
        settle_steps: Steps discarded after a change; at least 1, because the step of the change is mixed.

    Attributes:
        current: The setting proposed last.
        epoch: The version of the knobs it carries; -1 before the first change.
        reference: Step times of the default measured last, in nanoseconds.
        lost_ns: Time lost against the default so far, in nanoseconds; negative when time was won.
    """

    def __init__(self, default: Knobs, settle_steps: int) -> None:
        self.default = default
        self.current = default
        self.epoch = -1
        self.reference: deque[int] = deque(maxlen=_REFERENCE_STEPS)
        self.lost_ns = 0
        self._settle_steps = max(settle_steps, 1)
        self._asked = False

    def account(self, sample: Sample) -> None:
        """Count a step's time against the default.

        Raises:
            InvariantError: Knobs were handed out and nobody said which epoch they carry.
        """
        if self._asked:
            raise InvariantError("OnlineTuner: proposed(epoch) must follow on_step when it returns knobs")
        if self.epoch < 0:
            self.epoch = sample.epoch
        if self.current != self.default and sample.epoch >= self.epoch and self.reference:
            self.lost_ns += sample.ns - int(median(self.reference))

    def proposed(self, epoch: int) -> None:
        """Take note of the epoch that the knobs handed out last will carry."""
        self.epoch = epoch
        self._asked = False

    def ask_for(self, knobs: Knobs) -> Knobs:
        """Make knobs the current setting; the caller hands them out."""
        self.current, self._asked = knobs, True
        return knobs

    def switch(self, knobs: Knobs) -> Steps:
        """Change to a setting and discard the steps until it has settled; nothing when it is current already."""
        if knobs == self.current:
            return
        sample = yield self.ask_for(knobs)
        settled = 0
        while True:
            settled += sample.epoch >= self.epoch
            if settled >= self._settle_steps:
                return
            sample = yield None

    def collect(
        self,
        knobs: Knobs,
        steps: int,
        into: list[int],
        *,
        at_least_ns: int = 0,
        leave: Callable[[list[int]], bool] | None = None,
    ) -> Steps:
        """Run a setting and append its step times in nanoseconds.

        Args:
            knobs: The setting.
            steps: Steps to count.
            into: Where the times go.
            at_least_ns: Count further steps until they took so long together, but at most ten times as many.
            leave: Asked after every step with the times so far; True ends the measurement.
        """
        yield from self.switch(knobs)
        while len(into) < steps or (sum(into) < at_least_ns and len(into) < 10 * steps):
            sample = yield None
            into.append(sample.ns)
            if leave is not None and leave(into):
                return

    def refresh(self, steps: int, at_least_ns: int) -> Steps:
        """Run the default and add its step times to the reference; steps and time as for `collect`."""
        times: list[int] = []
        yield from self.collect(self.default, steps, times, at_least_ns=at_least_ns)
        self.reference.extend(times)

    def rest(self, at_least_ns: int) -> Steps:
        """Run the default for a while without counting."""
        yield from self.switch(self.default)
        rested_ns = 0
        while rested_ns < at_least_ns:
            rested_ns += (yield None).ns
