"""Search: trial after trial until enough is known, each measured beside the default. Pure, like `online`.

Before each trial the default runs a few steps again, so that a trial is compared with the machine as it is now. While
the advisor computes, training goes on with the default, and those steps are not counted (they are disturbed). A
setting that is clearly worse is left after a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Generator

from ringtune.knobs import Knobs
from ringtune.tuner.advice import Advisor, Stored, Suggestion
from ringtune.tuner.feed import Sample
from ringtune.tuner.messages import percent
from ringtune.tuner.meter import Meter, Steps
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.records import Source, TrialState
from ringtune.tuner.reporting import Reporter, Trial
from ringtune.tuner.scoring import clearly_worse, log_ratio
from ringtune.tuner.space import Space, distinct

# The test for "clearly worse" is made after every step, hence the small probability.
WORSE_MARGIN, WORSE_ALPHA = 0.10, 0.005
_CANDIDATES, _CANDIDATES_APART = 2, 0.08
# With this many stored trials the sampler has a model, and start points would only cost time.
_ENOUGH_STORED = 5
# A trial is begun when the time of so many steps of the default may be lost, which is the cost of a bad setting. The
# search gets a part of the budget, so that its results can be confirmed.
_AFFORD_STEPS, _SEARCH_PART = 4, 0.7


class Search:
    """The search of one session; its methods are generators as `Meter`'s are.

    Args:
        space: What is searched, around the job's default.
        advisor: Suggests settings.
        meter: Runs settings.
        report: Keeps and records the trials.
        options: Budget.
    """

    def __init__(self, space: Space, advisor: Advisor, meter: Meter, report: Reporter, options: OnlineOptions) -> None:
        self._space, self._advisor, self._meter, self._report = space, advisor, meter, report
        self._options = options
        self._default = space.default
        self._advisor_given_up = self._spent = False

    @property
    def trials(self) -> list[Trial]:
        """The trials so far."""
        return self._report.trials

    def baseline(self) -> Steps:
        times: list[int] = []
        yield from self._meter.collect(
            self._default, self._options.steps_per_trial, times, at_least_ns=self._options.window_ns
        )
        self._meter.reference.extend(times)
        self._report.trial(Trial(self._default, "default", 1.0), times, token=None)

    def run(self, stored: Stored) -> Steps:
        for knobs, source in self._known(stored):
            if len(self.trials) < self._scaled_trials and (yield from self._affordable()):
                yield from self._trial(knobs, source, token=None)
        best, stale = self.best().ratio, 0
        while len(self.trials) < self._scaled_trials and stale < self._options.patience:
            if not (yield from self._affordable()):
                return
            suggestion = yield from self._suggestion()
            if suggestion is None or not self._worthwhile(suggestion.left):
                return
            yield from self._trial(suggestion.knobs, "sampler", suggestion.token)
            progress = best - self.best().ratio
            stale = 0 if progress >= self._options.min_gain else stale + 1
            best = min(best, self.best().ratio)

    @property
    def _scaled_trials(self) -> int:
        """Trials for knobs with a scale: up to a quarter of all is kept for switches, where there are any."""
        most = self._options.max_trials
        return most - min(len(self._space.alternatives(self._default)), most // 4)

    def try_switches(self) -> Steps:
        """Try the switches one by one from the best setting so far, going on from each that is better."""
        tried = {trial.knobs for trial in self.trials}
        while len(self.trials) < self._options.max_trials:
            best = self.best()
            open_ones = [knobs for knobs in self._space.alternatives(best.knobs) if knobs not in tried]
            if not open_ones or not (yield from self._affordable()):
                return
            tried.add(open_ones[0])
            yield from self._trial(open_ones[0], "switch", token=None)

    def best(self) -> Trial:
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return min(complete, key=lambda trial: trial.ratio, default=Trial(self._default, "default", 1.0))

    def candidates(self) -> list[Knobs]:
        """Settings worth confirming: faster than the default in their trial, the best first, not alike."""
        faster = [trial for trial in self.trials if trial.state == "complete" and trial.ratio < 1.0]
        ordered = [trial.knobs for trial in sorted(faster, key=lambda trial: trial.ratio)]
        apart = distinct(self._space, ordered, apart=_CANDIDATES_APART)
        return [knobs for knobs in apart if knobs != self._default][:_CANDIDATES]

    def advisor_usable(self, waited_ns: int) -> bool:
        """Whether to go on with the advisor; the first time it is not, a note says why."""
        if self._advisor_given_up:
            return False
        failure = self._advisor.failure if self._advisor.state == "failed" else ""
        if not failure and waited_ns >= self._options.advisor_wait_ns:
            failure = f"no answer within {self._options.advisor_wait_ns / 1e9:.0f} s of training"
        if failure:
            self._advisor_given_up = True
            self._report.note(f"the advisor is gone, the search ends with what is measured: {failure}")
        return not failure

    def _known(self, stored: Stored) -> list[tuple[Knobs, Source]]:
        """Settings that need no sampler: the stored best or a near job's, the model's, then start points elsewhere."""
        known: list[tuple[Knobs, Source]] = []
        if stored.best is not None:
            known.append((stored.best, "stored"))
        elif stored.near is not None:
            known.append((stored.near.knobs, "near"))
        if stored.trials >= _ENOUGH_STORED:
            return known
        sources: dict[Knobs, Source] = {knobs: "model" for knobs in stored.first}
        points = self._space.start_points()
        for knobs in points:
            sources.setdefault(knobs, "start-point")
        taken = [self._default, *(knobs for knobs, _ in known)]
        chosen = distinct(self._space, sources, apart=_CANDIDATES_APART, taken=taken)
        return known + [(knobs, sources[knobs]) for knobs in chosen[: len(points)]]

    def _affordable(self) -> Generator[Knobs | None, Sample, bool]:
        """Run the default until the budget allows a trial; False when that takes too long."""
        cost = _AFFORD_STEPS * self._meter.step_ns
        affordable = yield from self._meter.afford(cost, _SEARCH_PART, self._options.afford_steps)
        if not affordable and not self._spent:
            self._spent = True
            self._report.note("the search ends: its budget of lost time is used up")
        return affordable

    def _worthwhile(self, left: float) -> bool:
        """Whether what may still be found is worth another trial; the end of the search says why."""
        lost_steps = max(self._meter.lost_ns, 0) / self._meter.step_ns
        cost = max(lost_steps / max(len(self.trials) - 1, 1), 1.0)
        if left >= self._options.min_gain / 2.0 and left * self._options.horizon_steps >= cost:
            return True
        self._report.note(
            f"the search ends: at most {percent(left)} of a step are left to find, and a trial costs {cost:.1f} steps"
        )
        return False

    def _suggestion(self) -> Generator[Knobs | None, Sample, Suggestion | None]:
        """Run the default, uncounted, until the advisor has answered; None when it has failed."""
        waited_ns = 0
        while self.advisor_usable(waited_ns):
            suggestion = self._advisor.ask()
            if suggestion is not None:
                yield from self._meter.rest(self._options.quiet_ns)
                return suggestion
            yield from self._meter.switch(self._default)
            waited_ns += (yield None).ns
        return None

    def _trial(self, knobs: Knobs, source: Source, token: int | None) -> Steps:
        options = self._options
        yield from self._meter.refresh(options.block_steps, options.window_ns)
        times: list[int] = []
        reference = list(self._meter.reference)

        def worse(so_far: list[int]) -> bool:
            early = len(so_far) < options.steps_per_trial
            return early and clearly_worse(so_far, reference, WORSE_MARGIN, WORSE_ALPHA)

        yield from self._meter.collect(
            knobs, options.steps_per_trial, times, at_least_ns=options.window_ns, leave=worse
        )
        state: TrialState = "complete" if len(times) >= options.steps_per_trial else "stopped-early"
        ratio = math.exp(log_ratio(times, reference))
        self._report.trial(Trial(knobs, source, ratio, state), times, token)
