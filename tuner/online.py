"""OnlineTuner: decides after every training step which knobs come next. Pure: no I/O, no clock, no thread.

The phases of a session:

1. warm-up: steps discarded, until the advisor is ready and has looked up what is stored about the job;
   A setting that an earlier session of the same job has confirmed runs from here on and is checked: a paired
   comparison with the default. Where it holds, the session ends with it; otherwise the search begins;
2. baseline: the default is trial 0 and the measure of everything;
3. search: the best trial of earlier sessions, fixed start points, then the advisor's suggestions (`search.Search`);
4. confirmation: the best few against the default, interleaved (`confirm.Comparison`);
5. the confirmed setting stays; otherwise the default does.

The caller feeds `StepStats`, applies the knobs returned, and says with `proposed` which version they will have.
Written as a generator: every ``yield`` hands out knobs (or None) and receives the next step's `Sample`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from statistics import median
from typing import Literal

from ringtune.knobs import Knobs
from ringtune.stats import StepStats
from ringtune.tuner.advice import Advisor, Stored, Workload
from ringtune.tuner.confirm import Comparison, Verdict
from ringtune.tuner.feed import Sample, StepFeed
from ringtune.tuner.messages import describe, percent, spread
from ringtune.tuner.meter import Meter, Steps
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.records import Record, ResultRecord
from ringtune.tuner.reporting import Ending, Reporter, Trial
from ringtune.tuner.scoring import NO_GAIN, clearly_worse, log_spread
from ringtune.tuner.search import WORSE_ALPHA, WORSE_MARGIN, Search
from ringtune.tuner.space import Space

Phase = Literal["warm-up", "check", "baseline", "search", "confirm", "done"]

# The last steps of the warm-up, against which a stored setting is watched until the default is measured.
_WARM_STEPS = 20


class OnlineTuner:
    """The decision machine of one session.

    Args:
        space: What is searched, around the job's default.
        advisor: Suggests settings; never blocks.
        options: Budget.
        trace: Called at the end of the warm-up; returns the timeline of its steps, see `Workload.trace`.
        before: The result of this training's session before, whose setting runs: the job has changed since.

    Attributes:
        phase: Where the session is.
        result: The end of the session; None while it runs.
        workload: What a step sends; known from the end of the warm-up on.
    """

    def __init__(
        self,
        space: Space,
        advisor: Advisor,
        options: OnlineOptions | None = None,
        trace: Callable[[], str] | None = None,
        before: ResultRecord | None = None,
    ) -> None:
        self.phase: Phase = "warm-up"
        self.result: ResultRecord | None = None
        self.workload = Workload(0, 0)
        self._space, self._advisor, self._options = space, advisor, options or OnlineOptions()
        self._default = space.default
        self._trace, self._before = trace, before
        budget = (self._options.budget, self._options.credit_steps)
        self._meter = Meter(space.default, self._options.settle_steps, budget)
        if before is not None:
            self._meter.current = before.knobs
        self._feed = StepFeed()
        self._report = Reporter(space, advisor, self._meter, self._options)
        self._search = Search(space, advisor, self._meter, self._report, self._options)
        self._warm: deque[int] = deque(maxlen=_WARM_STEPS)
        self._pending: Ending | None = None
        self._steps = self._session()
        next(self._steps)

    @property
    def trials(self) -> list[Trial]:
        """The trials of the search so far."""
        return self._report.trials

    @property
    def lost_ns(self) -> int:
        """Time lost against the default so far, in nanoseconds; negative when time was won."""
        return self._meter.lost_ns

    def take_records(self) -> list[Record]:
        """Return what happened since the last call, in order."""
        return self._report.outbox.take()

    def on_step(self, stats: StepStats) -> Knobs | None:
        """Process a finished step.

        Returns:
            Knobs to propose to all ranks; the caller must then call `proposed`. None: nothing changes.

        Raises:
            InvariantError: Knobs were handed out and `proposed` was not called.
        """
        if self.phase == "done":
            return None
        sample = self._feed.add(stats)
        if sample is None:
            return None
        self._meter.account(sample)
        try:
            return self._steps.send(sample)
        except StopIteration:
            return None

    def proposed(self, knobs_version: int) -> None:
        """Say which version the knobs of the last `on_step` will have."""
        self._meter.proposed(knobs_version)
        if self._pending is not None:
            self._finish(self._pending)

    def interrupt(self, why: str) -> None:
        """End the session now (training is over); does nothing when it has ended by itself.

        Args:
            why: What happened, as the beginning of a sentence, for example "training ended".
        """
        if self.result is not None:
            return
        self._steps.close()
        reason = f"{why} {self._place()}; nothing was confirmed, so the default stays"
        if self.phase == "check":
            reason = f"{why} while the stored result was checked; it stays stored"
        if self._before is not None:
            reason = f"{why} {self._place()}; what was confirmed before stays: {describe(self._before.knobs)}"
        best = self._search.best()
        if best.ratio < 1.0:
            reason += f"; best seen, unconfirmed: {describe(best.knobs)} ({percent(1.0 - best.ratio)} less time a step)"
        stays = self._before.knobs if self._before is not None else self._default
        self._finish(Ending("interrupted", stays, NO_GAIN, reason))

    # -- the session ------------------------------------------------------------------------------------------

    def _session(self) -> Steps:
        stored = yield from self._warm_up()
        if not self._space.dimensions:
            self._finish(Ending("keep-default", self._default, NO_GAIN, "the user's own settings fix every knob"))
            return
        checked = stored.best if stored.confirmed else None
        if stored.best is not None and stored.confirmed:
            self.phase = "check"
            verdict = yield from self._check(stored.best)
            if verdict is not None and verdict.winner is not None and self._as_before(verdict):
                reason = f"the stored result still holds: {spread(verdict.gain)} less time a step"
                yield from self._keep(Ending("improved", stored.best, verdict.gain, reason))
                return
            stored = replace(stored, best=None)
        if self._before is not None:
            # Trials from before the change count less than start points, so all start points are tried again.
            known = self._before.knobs not in (self._default, checked) and stored.best is None
            stored = replace(stored, best=self._before.knobs if known else stored.best, trials=0)
        if not self.trials:
            self.phase = "baseline"
            yield from self._search.baseline()
        self.phase = "search"
        yield from self._search.run(stored)
        yield from self._search.try_switches()
        self.phase = "confirm"
        verdict = yield from self._confirm(self._search.candidates())
        yield from self._keep(self._decide(verdict))

    def _keep(self, ending: Ending) -> Steps:
        """Change to the setting that stays, and end."""
        if ending.knobs == self._meter.current:
            self._finish(ending)
            return
        # The result holds the version of the last change, so it is written when `proposed` has named it.
        self._pending = ending
        yield self._meter.ask_for(ending.knobs)

    def _warm_up(self) -> Generator[Knobs | None, Sample, Stored]:
        seen: list[Sample] = []
        waited_ns = 0
        while len(seen) < max(self._options.warmup_steps, 1) or (
            self._advisor.state == "starting" and waited_ns < self._options.advisor_wait_ns
        ):
            sample = yield None
            seen.append(sample)
            self._warm.append(sample.ns)
            waited_ns += sample.ns
        self._report.bytes = int(median(sample.bytes for sample in seen))
        trace = self._trace() if self._trace is not None else ""
        self.workload = Workload(int(median(sample.collectives for sample in seen)), self._report.bytes, trace)
        fingerprint = self._advisor.open(self.workload)
        stored = self._advisor.stored()
        while stored is None and self._search.advisor_usable(waited_ns):
            waited_ns += (yield None).ns
            stored = self._advisor.stored()
        stored = stored or Stored(None, 0)
        self._report.start(fingerprint, stored)
        for why in stored.notes:
            self._report.note(why)
        if stored.near is not None:
            there = f"{stored.near.world} ranks on {stored.near.hosts} host(s)"
            self._report.note(f"starts from what the same gradients had with {there}: {describe(stored.near.knobs)}")
        return stored

    def _check(self, best: Knobs) -> Generator[Knobs | None, Sample, Verdict | None]:
        """Run a stored setting at once and compare it with the default; None when it was left as clearly worse."""
        self._report.note(f"the stored result of this job runs at once and is checked: {describe(best)}")

        def worse(so_far: list[int]) -> bool:
            return clearly_worse(so_far, list(self._warm), WORSE_MARGIN, WORSE_ALPHA)

        times: list[int] = []
        yield from self._meter.collect(best, self._options.steps_per_trial, times, leave=worse)
        verdict = None
        if not worse(times):
            comparison = Comparison([best], min_gain=self._options.min_gain, backwards=True)
            verdict = yield from self._compare("check", comparison, self._options.block_steps)
            self._report.check(comparison, verdict.winner is not None)
        if verdict is None or verdict.winner is None:
            seen = "slower than the default" if verdict is None else f"gain {spread(verdict.gain)}"
            self._report.note(f"the stored result does not hold any more ({seen}); searching")
        return verdict

    def _as_before(self, verdict: Verdict) -> bool:
        """Whether a checked setting gains over the default what it did before the job changed."""
        before = self._before
        if before is None or verdict.winner is None or before.knobs != verdict.winner.knobs:
            return True
        gain, apart = verdict.gain, self._options.min_gain
        same = gain.low - apart <= before.gain.median <= gain.high + apart
        if not same:
            gains = f"{spread(gain)} instead of {percent(before.gain.median)}"
            self._report.note(f"the setting is still better than the default, by {gains}; searching")
        return same

    def _confirm(self, candidates: list[Knobs]) -> Generator[Knobs | None, Sample, Verdict]:
        comparison = Comparison(candidates, min_gain=self._options.min_gain)
        steps = self._options.confirm_steps(log_spread(self._meter.reference))
        verdict = yield from self._compare("confirm", comparison, steps)
        self._report.comparison(comparison)
        return verdict

    def _compare(
        self, phase: Literal["check", "confirm"], comparison: Comparison, steps: int
    ) -> Generator[Knobs | None, Sample, Verdict]:
        while comparison.verdict is None:
            self._report.progress(phase, comparison)
            if not (yield from self._meter.afford(self._meter.step_ns, 1.0, 4 * self._options.afford_steps)):
                comparison.abandon()
                break
            times: dict[Knobs, list[int]] = {}
            for knobs in comparison.order(self._default):
                times[knobs] = []
                yield from self._meter.collect(knobs, steps, times[knobs], at_least_ns=self._options.block_ns)
                comparison.knobs_versions[knobs] = self._meter.knobs_version
            default = times.pop(self._default)
            self._meter.reference.extend(default)
            comparison.add_block(default, times)
        assert comparison.verdict is not None
        return comparison.verdict

    # -- decisions --------------------------------------------------------------------------------------------

    def _decide(self, verdict: Verdict) -> Ending:
        if verdict.winner is not None:
            reason = f"confirmed beside the default: {spread(verdict.gain)} less time a step"
            return Ending("improved", verdict.winner.knobs, verdict.gain, reason)
        reason = "no other setting looked faster"
        if verdict.rival is not None:
            reason = (
                f"no gain was confirmed; the best rival, {describe(verdict.rival.knobs)}: gain {spread(verdict.gain)}"
            )
        return Ending("keep-default", self._default, NO_GAIN, reason)

    def _place(self) -> str:
        return f"in the {self.phase} phase after {len(self.trials)} of at most {self._options.max_trials} trials"

    def _finish(self, ending: Ending) -> None:
        self._pending = None
        self.phase = "done"
        self.result = self._report.result(ending)
