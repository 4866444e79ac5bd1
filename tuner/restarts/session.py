"""RestartSession: which run comes next, and what the runs say. Decides only; a `Runner` runs, a `Memory` remembers.

1. The command as it is: trial 0. It must work; whatever fails here ends the session.
2. What an earlier session of the same job has confirmed is compared with it at once; where it holds, that is the end.
3. One variable after the other, going on from each value that helps; in a large space, whose values the trials would
   not even suffice to see once, the memory's sampler chooses from the fourth trial on. The command as it is runs again
   after every third trial, and a trial counts relative to the newest of these runs. A run that is clearly worse ends
   early; one that fails is a failed trial and no more.
4. The best setting against the command as it is, in runs right after each other, every other pair backwards: confirmed
   is a gain whose Student interval over the pairs lies above zero, with looks after 4, 6 and 9 pairs that share an
   error of 5 %. Otherwise the command stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Protocol

from ringtune.autoload import BACKEND
from ringtune.errors import RingtuneError
from ringtune.knobs import DEFAULTS
from ringtune.tuner.advice import Workload
from ringtune.tuner.messages import spread, variables
from ringtune.tuner.records import (
    Decision,
    FailedRecord,
    NoteRecord,
    ProgressRecord,
    Record,
    ResultRecord,
    Source,
    StartRecord,
    TrialRecord,
    TrialState,
)
from ringtune.tuner.restarts.choices import AS_IT_IS, Choice, Setting, neighbours
from ringtune.tuner.scoring import NO_GAIN, Interval, clearly_worse, log_ratio, median_interval, paired_gain

LOOKS = (4, 6, 9)
_ALPHA, _FUTILE_ALPHA = 0.05 / len(LOOKS), 0.1
_WORSE_MARGIN, _WORSE_ALPHA = 0.10, 0.005
_DEFAULT_EVERY = 3
_SEARCH_PART = 0.5
_FIRST_ONE_BY_ONE = 4
"""Trials of a large space, the command as it is included, before its sampler has enough results."""

_NOTHING = Workload(0, 0)

Leave = Callable[[Sequence[int]], bool]
"""Asked with the step times so far whether a run may end now."""


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        times: Step times counted, in nanoseconds, of the slowest rank.
        wall_s: How long it took from its start to its end.
        failure: Why it failed, one sentence; empty when it did not.
        workload: What a step sends.
        backend, made: What the run has shown of the job, see `Place`.
    """

    times: tuple[int, ...]
    wall_s: float
    failure: str = ""
    workload: Workload = _NOTHING
    backend: str = BACKEND
    made: Mapping[str, str] = field(default_factory=dict)


class Runner(Protocol):
    """Runs the command."""

    def run(self, setting: Setting, leave: Leave) -> Run:
        """Run the command under a setting until it has shown enough steps, ends, or `leave` says so."""


@dataclass(frozen=True)
class Known:
    """What the memory holds about a job: its name there, what was confirmed last, and how many trials."""

    fingerprint: str
    confirmed: Setting | None = None
    trials: int = 0


class Memory(Protocol):
    """Remembers the results of jobs."""

    def open(self, workload: Workload) -> Known:
        """Name the job."""

    def tell(self, setting: Setting, ratio: float | None) -> None:
        """Remember a trial: its step time relative to the command as it is; None: its run failed."""

    def suggest(self, fits: Callable[[Setting], bool]) -> Setting | None:
        """Choose the next setting of a large space from all trials of this job; None: there is no opinion."""

    def conclude(self, setting: Setting) -> None:
        """Remember the result of a session."""


@dataclass(frozen=True)
class RestartOptions:
    """Budget of a session.

    Attributes:
        max_trials: Settings tried, the command as it is included, its repetitions and the confirmation not.
        steps: Steps that a run counts at most, for the journal.
        budget_s: Most time for all runs together; None = no bound. Half of it is kept for the confirmation.
        min_gain: Share of the step time that counts as progress.
        world: Number of ranks.
    """

    max_trials: int = 12
    steps: int = 30
    budget_s: float | None = None
    min_gain: float = 0.01
    world: int = 1


class RestartSession:
    """One session.

    Args:
        runner: Runs the command.
        begin: Called with the first run, of the command as it is: what is tried, the memory of it, and
            what is not tried since the user has set it, in words.
        options: Budget.
        put: Receives records when they are made.

    Attributes:
        spent_s: Time of all runs so far.
        runs: Their number.
    """

    def __init__(
        self,
        runner: Runner,
        begin: Callable[[Run], tuple[Sequence[Choice], Memory, tuple[str, ...]]],
        options: RestartOptions,
        put: Callable[[Record], None],
    ) -> None:
        self.spent_s, self.runs = 0.0, 0
        self._runner, self._begin, self._put = runner, begin, put
        self._options = options
        self._reference: tuple[int, ...] = ()
        self._longest_s = 0.0
        self._ratios: dict[Setting, float] = {}
        self._parts: Mapping[str, str] = {}
        self._tried = {AS_IT_IS}
        self._hopeless: set[tuple[str, str]] = set()
        self._made = self._number = self._since_default = self._lost_ns = 0

    def run(self) -> ResultRecord:
        """Run the session to its end; Ctrl-C ends it with what was learned.

        Raises:
            RingtuneError: The command fails as it is.
        """
        try:
            result = self._session()
        except KeyboardInterrupt:
            result = self._result("interrupted", AS_IT_IS, NO_GAIN, self._so_far())
            self._put(result)
            return result
        self._put(result)
        self._memory.conclude(tuple((result.settings or {}).items()))
        return result

    def _session(self) -> ResultRecord:
        first = self._default_run()
        self._parts = first.made
        self._choices, self._memory, pinned = self._begin(first)
        self._large = sum(len(choice.values) for choice in self._choices) >= self._options.max_trials
        known = self._memory.open(first.workload)
        names = tuple(choice.variable for choice in self._choices)
        options = self._options
        self._put(
            StartRecord(
                DEFAULTS,
                known.fingerprint,
                options.world,
                names,
                options.max_trials,
                options.steps,
                known.trials,
                pinned,
            )
        )
        self._record(AS_IT_IS, "default", first.times, NO_GAIN)
        self._ratios[AS_IT_IS] = 1.0
        self._made = 1
        if known.confirmed:
            self._note(f"the stored result of this job is checked: {variables(dict(known.confirmed))}")
            holds, gain = self._confirm(known.confirmed)
            if holds:
                reason = f"the stored result still holds: {spread(gain)} less time a step"
                return self._result("improved", known.confirmed, gain, reason)
            self._tried.add(known.confirmed)
            self._note(f"the stored result does not hold any more (gain {spread(gain)}); searching")
        return self._search_and_confirm()

    def _search_and_confirm(self) -> ResultRecord:
        self._search()
        best = self._best()
        if best == AS_IT_IS:
            return self._result("keep-default", AS_IT_IS, NO_GAIN, "no other setting looked faster")
        holds, gain = self._confirm(best)
        if holds:
            reason = f"confirmed beside the command as it is: {spread(gain)} less time a step"
            return self._result("improved", best, gain, reason)
        reason = f"no gain was confirmed; the best rival, {variables(dict(best))}: gain {spread(gain)}"
        return self._result("keep-default", AS_IT_IS, NO_GAIN, reason)

    # -- runs -------------------------------------------------------------------------------------------------

    def _run(self, setting: Setting, leave: Leave = lambda times: False) -> Run:
        run = self._runner.run(setting, leave)
        self.runs += 1
        self.spent_s += run.wall_s
        self._longest_s = max(self._longest_s, run.wall_s)
        return run

    def _default_run(self) -> Run:
        run = self._run(AS_IT_IS)
        if run.failure:
            raise RingtuneError(f"the command fails as it is, nothing can be tuned: {run.failure}")
        self._reference, self._since_default = run.times, 0
        return run

    def _search(self) -> None:
        """Try one setting after the other, until none is left."""
        while self._made < self._options.max_trials:
            setting, source = self._next()
            if setting is None:
                return
            if not self._affordable(_SEARCH_PART, 2):
                self._note("the search ends: its half of the budget is used up")
                return
            if self._since_default >= _DEFAULT_EVERY:
                again = self._default_run()
                self._record(AS_IT_IS, "default", again.times, NO_GAIN)
            self._tried.add(setting)
            self._made += 1
            self._trial(setting, source)

    def _next(self) -> tuple[Setting | None, Source]:
        """The next setting: the sampler's choice in a large space, else a neighbour of the best setting so far."""
        if self._large and self._made >= _FIRST_ONE_BY_ONE:
            suggested = self._memory.suggest(self._fits)
            if suggested is not None:
                return suggested, "sampler"
        fitting = (one for one in neighbours(self._best(), self._choices) if self._fits(one))
        return next(fitting, None), "switch"

    def _fits(self, setting: Setting) -> bool:
        """Whether it is new and holds no value that has failed or was clearly worse before."""
        return setting not in self._tried and not self._hopeless & set(setting)

    def _trial(self, setting: Setting, source: Source) -> None:
        reference, new = self._reference, set(setting) - set(self._best())
        early = False

        def worse(times: Sequence[int]) -> bool:
            nonlocal early
            early = early or clearly_worse(times, reference, _WORSE_MARGIN, _WORSE_ALPHA)
            return early

        run = self._run(setting, worse)
        self._since_default += 1
        if (run.failure or early) and len(new) == 1:  # of several new values it is not known which one it was
            self._hopeless |= new
        if run.failure:
            self._failed(setting, run)
            self._memory.tell(setting, None)
            return
        ratio = math.exp(log_ratio(run.times, reference))
        seen = median_interval(run.times)
        low, high = (1.0 - ratio * edge / seen.median for edge in (seen.high, seen.low))
        self._record(setting, source, run.times, Interval(1.0 - ratio, low, high), early=early)
        self._memory.tell(setting, ratio)
        if not early:
            self._ratios[setting] = ratio

    def _confirm(self, setting: Setting) -> tuple[bool, Interval]:
        """Compare a setting with the command as it is, pair by pair; returns whether it is better, and its gain."""
        pairs: list[float] = []
        samples: dict[Setting, list[int]] = {AS_IT_IS: [], setting: []}
        gain, holds = NO_GAIN, False
        while not holds and len(pairs) < LOOKS[-1] and self._affordable(1.0, 2):
            self._progress(setting, pairs)
            times = self._pair(setting, backwards=len(pairs) % 2 == 1)
            if not times:
                return False, NO_GAIN
            for one, seen in times.items():
                samples[one] += seen
            pairs.append(log_ratio(times[setting], times[AS_IT_IS]))
            if len(pairs) in LOOKS:
                holds = paired_gain(pairs, _ALPHA).low > 0.0
                if paired_gain(pairs, _FUTILE_ALPHA).high < self._options.min_gain:
                    break
        if pairs:
            gain = paired_gain(pairs, _ALPHA)
            self._record(AS_IT_IS, "confirm", samples[AS_IT_IS], NO_GAIN)
            self._record(setting, "confirm", samples[setting], gain)
            self._memory.tell(setting, math.exp(fmean(pairs)))
        return holds, gain

    def _pair(self, setting: Setting, *, backwards: bool) -> dict[Setting, tuple[int, ...]]:
        """Run the command as it is and under a setting; returns nothing when the setting fails."""
        times: dict[Setting, tuple[int, ...]] = {}
        for one in (setting, AS_IT_IS) if backwards else (AS_IT_IS, setting):
            run = self._default_run() if one == AS_IT_IS else self._run(one)
            if run.failure:
                self._failed(one, run)
                return {}
            times[one] = run.times
        return times

    def _affordable(self, part: float, runs: int) -> bool:
        """Whether so many more runs as long as the longest fit into a part of the budget."""
        budget = self._options.budget_s
        return budget is None or self.spent_s + runs * self._longest_s <= part * budget

    # -- what is said -----------------------------------------------------------------------------------------

    def _best(self) -> Setting:
        """The fastest setting; one that gains less than `min_gain` is not worth a variable."""
        best = min(self._ratios, key=lambda setting: self._ratios[setting])
        return best if self._ratios[best] <= 1.0 - self._options.min_gain else AS_IT_IS

    def _record(
        self, setting: Setting, source: Source, times: Sequence[int], gain: Interval, *, early: bool = False
    ) -> None:
        if setting != AS_IT_IS:
            self._lost_ns += int(len(times) * (median(times) - median(self._reference)))
        state: TrialState = "stopped-early" if early else "complete"
        self._put(
            TrialRecord(
                trial=self._number,
                source=source,
                state=state,
                knobs=DEFAULTS,
                knobs_version=0,
                steps=len(times),
                step_ns=median_interval(times),
                gain=gain,
                lost_ns=self._lost_ns,
                settings=dict(setting),
            )
        )
        self._number += 1

    def _progress(self, setting: Setting, pairs: Sequence[float]) -> None:
        look = next(look for look in LOOKS if look > len(pairs))
        gain = paired_gain(pairs, _ALPHA) if len(pairs) > 1 else NO_GAIN
        self._put(
            ProgressRecord(
                phase="check" if self._made == 1 else "confirm",
                blocks=len(pairs),
                next_look=look,
                most=LOOKS[-1],
                rivals=1,
                knobs=DEFAULTS,
                gain=gain,
                settings=dict(setting),
            )
        )

    def _failed(self, setting: Setting, run: Run) -> None:
        self._put(FailedRecord(self._number, dict(setting), run.failure))
        self._number += 1

    def _note(self, message: str) -> None:
        self._put(NoteRecord(message))

    def _result(self, decision: Decision, setting: Setting, gain: Interval, reason: str) -> ResultRecord:
        kept, parts = dict(setting), self._parts
        return ResultRecord(decision, DEFAULTS, 0, gain, self._lost_ns, reason, self._made, kept, parts)

    def _so_far(self) -> str:
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        reason = f"interrupted after {runs}; nothing was confirmed, so the command stays as it is"
        best = self._best() if self._ratios else AS_IT_IS
        if best != AS_IT_IS:
            gain = 100.0 * (1.0 - self._ratios[best])
            reason += f"; best seen, unconfirmed: {variables(dict(best))} ({gain:.1f} % less time a step)"
        return reason
