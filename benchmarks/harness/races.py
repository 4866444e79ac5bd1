"""Races between jobs: their order, the length of their turns, and the samples that count.

Bursts of all contenders alternate in rotating order, one job at a time, so that a slow spell of the machine hits all of
them. A sample is the time per call of one burst, on its slowest rank unless the benchmark says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from ringtune.benchmarks.harness.environments import SUBJECT
from ringtune.benchmarks.harness.progress import Reporter
from ringtune.benchmarks.harness.race.bursts import Burst
from ringtune.benchmarks.harness.racejob import JobLost, JobPlan, RaceJob, TaskUnsupported

# Long enough that clock and scheduler noise are small, short enough that contenders alternate often.
BURST_NS = 10_000_000
# Until the estimate of a call's time is steady: the first calls find cold caches and unopened connections.
CALIBRATIONS = 5
ORDER_SECONDS = 120.0
# A call this long dwarfs the fraction of a millisecond by which the ranks begin apart: it needs no lead-in.
LONG_CALL_NS = 500_000_000


@dataclass(frozen=True)
class Budget:
    """How long a case may take.

    Args:
        seconds: per contender.
        min_rounds: least number of samples.
        max_rounds: most samples.
        burst_ns: how long a burst shall last.
        calibrations: unmeasured bursts of each contender before the first round.
    """

    seconds: float = 1.0
    min_rounds: int = 7
    max_rounds: int = 400
    burst_ns: int = BURST_NS
    calibrations: int = CALIBRATIONS


@dataclass
class CaseResult:
    """The result of a case.

    Args:
        times_ns: nanoseconds per call by contender, one sample per round.
        unsupported: contender -> why it cannot do this case.
    """

    times_ns: dict[str, list[float]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)


@dataclass
class _Runner:
    """A contender in a case."""

    name: str
    way: str
    job: RaceJob
    max_calls: int
    sample: Callable[[Sequence[float]], float]
    burst: Burst = field(default_factory=lambda: Burst(1, 1))
    samples: list[float] = field(default_factory=list)

    def run(self) -> float:
        answers = self.job.ask(ORDER_SECONDS, do="burst", contender=self.way, **asdict(self.burst))
        return self.sample([float(answer["ns"]) for answer in answers])


class Race:
    """All jobs of a benchmark, case after case.

    Args:
        jobs: the jobs that take part.
        on_loss: called when a job is lost; it decides whether the race goes on (returns) or ends (raises).
        sample: gives a burst's time per call from those of its ranks.
    """

    def __init__(
        self,
        jobs: Sequence[RaceJob],
        on_loss: Callable[[JobPlan, JobLost], None],
        sample: Callable[[Sequence[float]], float] = max,
    ) -> None:
        self._jobs = list(jobs)
        self._on_loss = on_loss
        self._sample = sample

    def run_case(self, task: Mapping[str, Any], budget: Budget) -> CaseResult:
        """Returns the samples of one case; those of a job that is lost on the way are left out.

        Args:
            task: what the ranks open.
            budget: how long it may take.
        """
        result = CaseResult()
        runners: list[_Runner] = []
        for job in list(self._jobs):
            with self._guard(job):
                for name in job.plan.contenders:
                    runners += self._open(job, name, task, result)
        for runner in self._still(runners):
            with self._guard(runner.job):
                _calibrate(runner, budget)
        runners = self._still(runners)
        deadline = time.monotonic() + budget.seconds * len(runners)
        for index in range(budget.max_rounds):
            if index >= budget.min_rounds and time.monotonic() > deadline:
                break
            runners = self._round(runners, index)
        result.times_ns = {runner.name: runner.samples for runner in runners}
        for job in list(self._jobs):
            with self._guard(job):
                job.ask(ORDER_SECONDS, do="close")
        return result

    def _open(self, job: RaceJob, name: str, task: Mapping[str, Any], result: CaseResult) -> list[_Runner]:
        """Returns the contender ready to run, or notes that it cannot."""
        way = job.plan.contenders[name]
        try:
            answers = job.ask(ORDER_SECONDS, do="open", contender=way, **task)
        except TaskUnsupported as error:
            result.unsupported[name] = str(error)
            return []
        return [_Runner(name, way, job, int(answers[0]["max_calls"]), self._sample)]

    def _round(self, runners: list[_Runner], index: int) -> list[_Runner]:
        """Lets every contender run once, beginning with another one each time; returns those that are left."""
        turn = index % max(1, len(runners))
        for runner in runners[turn:] + runners[:turn]:
            if runner.job in self._jobs:
                with self._guard(runner.job):
                    runner.samples.append(runner.run())
        return self._still(runners)

    def _still(self, runners: Sequence[_Runner]) -> list[_Runner]:
        return [runner for runner in runners if runner.job in self._jobs]

    @contextmanager
    def _guard(self, job: RaceJob) -> Iterator[None]:
        """Takes a job that is lost out of the race."""
        try:
            yield
        except JobLost as error:
            self._jobs.remove(job)
            job.close()
            self._on_loss(job.plan, error)


def _calibrate(runner: _Runner, budget: Budget) -> None:
    """Warms `runner` up and decides how much it calls in a burst."""
    for _ in range(budget.calibrations):
        runner.burst = plan_burst(runner.run(), runner.max_calls, runner.burst, budget.burst_ns)


def plan_burst(call_ns: float, max_calls: int, before: Burst, burst_ns: int = BURST_NS) -> Burst:
    """Returns the burst that fills `burst_ns`, at most 16 times as many calls as `before`.

    A first estimate out of a single call says little about the next thousands.

    Args:
        call_ns: estimated time of a call.
        max_calls: how often a loop may call, the untimed call included.
        before: the burst that gave the estimate.
        burst_ns: how long a burst shall last.
    """
    limit = 16 * before.loops * before.calls
    wanted = max(1, min(int(burst_ns / max(call_ns, 1.0)), limit))
    calls = max(1, min(wanted, max_calls - 1))
    return Burst(max(1, round(wanted / calls)), calls, call_ns < LONG_CALL_NS)


@dataclass
class Outcome:
    """The result of a benchmark.

    Args:
        results: one per case.
        about: peer -> name and version, as it says itself.
        failed: peer -> how it was lost on the way.
    """

    results: list[CaseResult] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def open_race(
    plans: Sequence[JobPlan],
    stack: ExitStack,
    outcome: Outcome,
    reporter: Reporter,
    sample: Callable[[Sequence[float]], float] = max,
) -> Race:
    """Returns the race of all jobs that could be started; `stack` ends them.

    Args:
        plans: the jobs, ringtune's first.
        stack: takes the jobs.
        outcome: learns what takes part and what was lost.
        reporter: prints which peers are lost.
        sample: see `Race`.

    Raises:
        JobLost: ringtune itself cannot start.
    """
    jobs = []
    for plan in plans:
        try:
            job = RaceJob(plan)
        except JobLost as error:
            _lose(outcome, reporter, plan, error)
            continue
        stack.callback(job.close)
        outcome.about[plan.name] = job.about
        jobs.append(job)
    return Race(jobs, partial(_lose, outcome, reporter), sample)


def _lose(outcome: Outcome, reporter: Reporter, plan: JobPlan, error: JobLost) -> None:
    """Goes on without a peer; without ringtune there is nothing to compare."""
    if plan.name.startswith(SUBJECT):
        raise error
    outcome.failed[plan.name] = str(error)
    reporter.say(f"failed: {error}")
