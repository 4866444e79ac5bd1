"""The interface between the tuner and an advisor that suggests settings: messages and the `Advisor` protocol.

No call blocks: training asks once a step and goes on with its default until the answer has arrived. There are two
implementations: `study.StudyAdvisor` (in this process, used by simulations and inside the advisor process) and
`advisor.ProcessAdvisor` (another process, used in training).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from ringtune.knobs import Knobs
from ringtune.tuner.records import ResultRecord, TrialRecord

AdvisorState = Literal["starting", "ready", "failed"]


@dataclass(frozen=True)
class Workload:
    """What one step of the job communicates, seen during the warm-up.

    Attributes:
        collectives: Operations a step.
        bytes: Payload a step and rank, in bytes.
        trace: Rank 0's timeline of some steps of the warm-up; empty = none.
    """

    collectives: int
    bytes: int
    trace: str = ""


@dataclass(frozen=True)
class Near:
    """What was confirmed for the same gradients elsewhere: with another number of ranks or hosts, or other machines.

    Attributes:
        knobs: The setting.
        world: Ranks of that job.
        hosts: Its hosts.
    """

    knobs: Knobs
    world: int
    hosts: int


@dataclass(frozen=True)
class Stored:
    """What earlier sessions of the same job have left.

    Attributes:
        best: The best known setting other than the default; None when none is known.
        trials: Number of trials in the store.
        first: Settings that a model of the job puts before the default, best first.
        confirmed: Whether `best` was confirmed beside the default at the end of a session.
        near: Where nothing is known about the job: the nearest confirmed setting of a job like it.
        notes: What the search does without, and why.
    """

    best: Knobs | None
    trials: int
    first: tuple[Knobs, ...] = ()
    confirmed: bool = False
    near: Near | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suggestion:
    """A setting to try next.

    Attributes:
        knobs: The setting.
        token: Handed back with the outcome.
        left: Most that any setting may still improve on the best one, as a share of the default's step time;
            infinite when it is not known.
    """

    knobs: Knobs
    token: int
    left: float = math.inf


@dataclass(frozen=True)
class Outcome:
    """The result of one trial.

    Attributes:
        trial: What was measured.
        ratio: Median step time divided by the default's, measured around the same time; 1 = as fast as the default.
        token: The suggestion it answers; None for settings the tuner chose itself.
    """

    trial: TrialRecord
    ratio: float
    token: int | None = None


class Advisor(Protocol):
    """Suggests settings and remembers outcomes. No method blocks; none raises for a failure of the advisor."""

    @property
    def state(self) -> AdvisorState:
        """``starting`` until suggestions can be computed, ``failed`` for good once something broke."""

    @property
    def failure(self) -> str:
        """Why the advisor failed, one sentence; empty otherwise."""

    def open(self, workload: Workload) -> str:
        """Name the job, once; returns the job's fingerprint."""

    def stored(self) -> Stored | None:
        """Return what is known about the job; None while it is being read."""

    def ask(self) -> Suggestion | None:
        """Return the next setting to try; None while it is being computed."""

    def tell(self, outcome: Outcome) -> None:
        """Report a trial."""

    def conclude(self, result: ResultRecord) -> None:
        """Report the session's end; what was confirmed is what the next session starts from."""

    def finish(self) -> None:
        """Say that no request follows; reported outcomes are still stored. Does not wait for that."""

    def close(self) -> None:
        """Release everything; waits for a few seconds at most."""
