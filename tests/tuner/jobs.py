"""What the tuner's tests share: a fake advisor, and a way to play whole sessions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.advice import Advisor, AdvisorState, Outcome, Stored, Suggestion, Workload
from ringtune.tuner.landscape import Noise, SimulatedRun
from ringtune.tuner.online import OnlineTuner
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.records import ResultRecord
from ringtune.tuner.space import Space

QUIET = Noise(spread=0.0)
FAST, SLOW = Knobs(2 << 20, 300_000), Knobs(64 << 20, 20_000_000)


class FakeAdvisor:
    """Hands out the given settings, after thinking for a number of questions; remembers what it was told."""

    def __init__(
        self,
        settings: Iterable[Knobs] = (),
        *,
        thinks: int = 0,
        stored: Stored | None = None,
        left: float = math.inf,
    ) -> None:
        self.told: list[Outcome] = []
        self.results: list[ResultRecord] = []
        self.workload: Workload | None = None
        self.state: AdvisorState = "ready"
        self.failure = ""
        self._settings: Iterator[Knobs] = iter(settings)
        self._thinks, self._asked = thinks, 0
        self._stored = stored or Stored(None, 0)
        self._token, self._left = 0, left

    def fail(self, why: str) -> None:
        self.state, self.failure = "failed", why

    def open(self, workload: Workload) -> str:
        self.workload = workload
        return "f" * 16

    def stored(self) -> Stored | None:
        return self._stored

    def ask(self) -> Suggestion | None:
        self._asked += 1
        if self._asked <= self._thinks:
            return None
        self._asked = 0
        knobs = next(self._settings, None)
        if knobs is None:
            self.fail("out of ideas")
            return None
        self._token += 1
        return Suggestion(knobs, self._token, self._left)

    def tell(self, outcome: Outcome) -> None:
        self.told.append(outcome)

    def conclude(self, result: ResultRecord) -> None:
        self.results.append(result)

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Table:
    """A job with given step times for given settings, 10 ms elsewhere."""

    times: dict[Knobs, float]
    bytes: int = 4096
    gradients: int = 3

    def step_ns(self, knobs: Knobs) -> float:
        return self.times.get(knobs, 10e6)


def session(
    advisor: FakeAdvisor, times: dict[Knobs, float] | None = None, options: OnlineOptions | None = None
) -> tuple[OnlineTuner, SimulatedRun]:
    tuner = OnlineTuner(Space(), advisor, options or OnlineOptions(max_trials=4, steps_per_trial=6, world=2))
    return tuner, SimulatedRun(Table(times or {}), QUIET, DEFAULTS, 0)


def play(tuner: OnlineTuner, run: SimulatedRun, steps: int = 3000) -> int:
    """Run a job under the tuner until it has decided, or for so many steps; returns the steps made."""
    for step in range(steps):
        if tuner.result is not None:
            return step
        knobs = tuner.on_step(run.next_step())
        if knobs is not None:
            tuner.proposed(run.propose(knobs))
    return steps


def check_protocol(advisor: FakeAdvisor) -> Advisor:
    """The fake is an advisor (checked by mypy)."""
    return advisor
