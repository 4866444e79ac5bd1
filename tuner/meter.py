"""Measuring one setting after another in a running job: changes of knobs, discarded steps, time lost."""

from __future__ import annotations

import math
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
        budget: Most that may be lost, see `OnlineOptions.budget` and `credit_steps`.

    Attributes:
        current: The setting proposed last.
        knobs_version: Version of those knobs; -1 before the first change.
        reference: Step times of the default measured last, in nanoseconds.
        elapsed_ns: Time since the beginning, in nanoseconds.
    """

    def __init__(self, default: Knobs, settle_steps: int, budget: tuple[float | None, int] = (None, 0)) -> None:
        self.default = default
        self.current = default
        self.knobs_version = -1
        self.reference: deque[int] = deque(maxlen=_REFERENCE_STEPS)
        self.elapsed_ns = 0
        self._share, self._credit_steps = budget
        self._last_ns = 1
        self._lost_before_ns = 0
        self._run: list[int] = []
        self._settle_steps = max(settle_steps, 1)
        self._asked = False

    def account(self, sample: Sample) -> None:
        """Count a step's time against the default.

        Raises:
            InvariantError: Knobs were handed out, and `proposed` was not called.
        """
        if self._asked:
            raise InvariantError("OnlineTuner: proposed(knobs_version) must follow on_step when it returns knobs")
        if self.knobs_version < 0:
            self.knobs_version = sample.knobs_version
        self.elapsed_ns += sample.ns
        self._last_ns = max(sample.ns, 1)
        if self.current != self.default and sample.knobs_version >= self.knobs_version:
            self._run.append(sample.ns)

    @property
    def lost_ns(self) -> int:
        """Time lost against the default so far, in nanoseconds; negative when time was won.

        By medians of each setting's steps, since rare long steps of the machine would have hit the default as well.
        Settings that ran before the default was measured count from then on.
        """
        if not self._run or not self.reference:
            return self._lost_before_ns
        return self._lost_before_ns + int(len(self._run) * (median(self._run) - self.step_ns))

    @property
    def step_ns(self) -> float:
        """Step time of the default, in nanoseconds; 1 before it was measured."""
        return float(median(self.reference)) if self.reference else 1.0

    def credit_ns(self, part: float = 1.0) -> float:
        """What may still be lost now of a part of the budget, in nanoseconds; infinite without a budget."""
        if self._share is None:
            return math.inf
        return part * self._share * max(self.elapsed_ns, self._credit_steps * self.step_ns) - self.lost_ns

    @property
    def broke(self) -> bool:
        """Whether another setting than the default runs and nothing more may be lost."""
        return self.current != self.default and self.credit_ns() < 0.0

    def proposed(self, knobs_version: int) -> None:
        """Take note of the version that the knobs handed out last will have."""
        self.knobs_version = knobs_version
        self._asked = False

    def ask_for(self, knobs: Knobs) -> Knobs:
        """Make knobs the current setting; the caller hands them out."""
        if self.reference:
            self._lost_before_ns, self._run = self.lost_ns, []
        self.current, self._asked = knobs, True
        return knobs

    def switch(self, knobs: Knobs) -> Steps:
        """Change to a setting and discard the steps until it has settled; nothing when it is current already."""
        if knobs == self.current:
            return
        sample = yield self.ask_for(knobs)
        settled = 0
        while True:
            settled += sample.knobs_version >= self.knobs_version
            if settled >= self._settle_steps or (settled and self.broke):
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
        """Run a setting and append its step times in nanoseconds, at least one; the end of the budget ends it.

        Args:
            knobs: The setting.
            steps: Steps to count.
            into: Where the times go.
            at_least_ns: Count further steps until they took so long together, but at most ten times as many.
            leave: Asked after every step with the times so far; True ends the measurement.
        """
        yield from self.switch(knobs)
        if self.broke:
            into.append(self._last_ns)
            return
        while len(into) < steps or (sum(into) < at_least_ns and len(into) < 10 * steps):
            sample = yield None
            into.append(sample.ns)
            if self.broke or (leave is not None and leave(into)):
                return

    def afford(self, cost_ns: float, part: float, most_steps: int) -> Generator[Knobs | None, Sample, bool]:
        """Run the default until so much of a part of the budget may be lost; returns whether it may.

        Args:
            cost_ns: What may be lost next, in nanoseconds.
            part: Share of the budget that it must fit into.
            most_steps: Steps to wait at most.
        """
        waited = 0
        while self.credit_ns(part) < cost_ns:
            if waited + self._steps_until(cost_ns, part) > most_steps:
                return False
            yield from self.switch(self.default)
            yield None
            waited += 1
        return True

    def _steps_until(self, cost_ns: float, part: float) -> float:
        """Steps of the default until so much of a part of the budget may be lost; infinite when never."""
        if not self._share:
            return math.inf
        missing = (cost_ns - self.credit_ns(part)) / (part * self._share)
        not_yet = max(self._credit_steps * self.step_ns - self.elapsed_ns, 0.0)
        return (missing + not_yet) / self.step_ns

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
