"""One session of one search procedure on one landscape, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from statistics import median

from ringtune.benchmarks.tuning.landscapes import Landscape, ModelJob
from ringtune.benchmarks.tuning.procedures import PROCEDURES
from ringtune.knobs import Knobs
from ringtune.tuner.fingerprint import JobDescription
from ringtune.tuner.landscape import SimulatedRun
from ringtune.tuner.model.cluster import Link
from ringtune.tuner.online import OnlineTuner
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.prior import Prior
from ringtune.tuner.space import Space
from ringtune.tuner.study import StudyAdvisor, StudyOptions

RINGTUNE, COLD = "ringtune", "ringtune without its model"
TRIALS, STEPS_PER_TRIAL, SETTLE_STEPS = 15, 10, 2
_MOST_STEPS = 20_000


@dataclass(frozen=True)
class Outcome:
    """How a session ended; step times are the landscape's, free of noise.

    Attributes:
        landscape: Its name.
        noise: Name of the noise.
        procedure: Name of the search procedure.
        seed: Of noise and search.
        knobs: The setting that stays.
        trials: Settings tried.
        steps: Steps from the first one to the decision.
        to_optimum: Step time of the end over that of the optimum, less 1.
        to_default: Step time of the end over that of the default, less 1; negative = improved.
        lost: Time lost up to the decision against the default, in steps of the default.
        deepest: The most that was ever lost up to then.
        break_even: Steps after which the whole training is ahead of the default; infinite when it never is.
    """

    landscape: str
    noise: str
    procedure: str
    seed: int
    knobs: Knobs
    trials: int
    steps: int
    to_optimum: float
    to_default: float
    lost: float
    deepest: float
    break_even: float

    @property
    def near(self) -> bool:
        """Whether it ended within 3 % of the optimum."""
        return self.to_optimum <= 0.03

    @property
    def harmful(self) -> bool:
        """Whether it ended more than 1 % below the default."""
        return self.to_default > 0.01


class _Ledger:
    """A run whose lost time is kept."""

    def __init__(self, landscape: Landscape, noise: str, seed: int) -> None:
        self.run = SimulatedRun(landscape.job, landscape.noises[noise], landscape.default, seed)
        self.landscape = landscape
        self.lost = self.deepest = 0.0

    def step(self) -> int:
        """Run a step; returns its measured length."""
        stats = self.run.next_step()
        self.account()
        return stats.wall_ns

    def account(self) -> None:
        self.lost += self.landscape.job.step_ns(self.run.knobs) / self.landscape.default_ns - 1.0
        self.deepest = max(self.deepest, self.lost)

    def outcome(self, noise: str, procedure: str, seed: int, end: tuple[Knobs, int]) -> Outcome:
        place = self.landscape
        knobs, trials = end
        end_ns, won = place.job.step_ns(knobs), 1.0 - place.job.step_ns(knobs) / place.default_ns
        steps = self.run.step
        behind = max(self.lost, 0.0)
        break_even = steps + behind / won if won > 1e-9 else (steps if self.lost <= 0.0 and won >= 0 else math.inf)
        to_optimum, to_default = end_ns / place.optimum_ns - 1.0, -won
        return Outcome(
            place.name, noise, procedure, seed, knobs, trials, steps, to_optimum, to_default, self.lost, self.deepest,
            break_even,
        )  # fmt: skip


def play(landscape: Landscape, noise: str, procedure: str, seed: int) -> Outcome:
    """Run a session to its end."""
    ledger = _Ledger(landscape, noise, seed)
    if procedure in (RINGTUNE, COLD):
        end = _ours(ledger, seed, _prior(landscape, seed) if procedure == RINGTUNE else None)
    else:
        end = _theirs(ledger, procedure, seed)
    return ledger.outcome(noise, procedure, seed, end)


def _prior(landscape: Landscape, seed: int) -> Prior | None:
    """A model of a modelled job as a calibration might leave it: terms off by tens of percent, no contention."""
    job = landscape.job
    if not isinstance(job, ModelJob):
        return None
    random = Random(seed)
    link = job.cluster.network
    network = Link(link.latency_ns * random.uniform(0.5, 2.0), link.bytes_per_s * random.uniform(0.7, 1.3))
    memory = job.cluster.memory.faster(random.uniform(0.7, 1.3))
    cluster = replace(job.cluster, network=network, memory=memory, batch_ns=0.0, contention=0.0)
    return ModelJob(job.work.lasting(job.work.compute_ns * random.uniform(0.9, 1.1)), cluster).step_ns


def _ours(ledger: _Ledger, seed: int, prior: Prior | None) -> tuple[Knobs, int]:
    space = Space.around(ledger.landscape.default)
    advisor = StudyAdvisor(space, JobDescription(), StudyOptions(seed=seed), prior)
    tuner = OnlineTuner(space, advisor, OnlineOptions(max_trials=TRIALS, steps_per_trial=STEPS_PER_TRIAL))
    while tuner.result is None and ledger.run.step < _MOST_STEPS:
        stats = ledger.run.next_step()
        ledger.account()
        knobs = tuner.on_step(stats)
        if knobs is not None:
            tuner.proposed(ledger.run.propose(knobs))
    if tuner.result is None:
        tuner.interrupt("the steps are over")
    assert tuner.result is not None
    return tuner.result.knobs, tuner.result.trials


def _theirs(ledger: _Ledger, procedure: str, seed: int) -> tuple[Knobs, int]:
    settings = PROCEDURES[procedure](Space.around(ledger.landscape.default), seed)
    best, best_ns = ledger.landscape.default, math.inf
    knobs = next(settings)
    for _ in range(TRIALS):
        knobs_version = ledger.run.propose(knobs)
        while ledger.run.knobs_version < knobs_version:
            ledger.step()
        for _ in range(SETTLE_STEPS - 1):
            ledger.step()
        score = median(ledger.step() for _ in range(STEPS_PER_TRIAL))
        if score < best_ns:
            best, best_ns = knobs, score
        knobs = settings.send(score)
    return best, TRIALS
