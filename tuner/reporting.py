"""What a session says: records for the journal, outcomes for the advisor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ringtune.knobs import Knobs
from ringtune.tuner.advice import Advisor, Outcome, Stored
from ringtune.tuner.confirm import LOOKS, Comparison
from ringtune.tuner.meter import Meter
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.records import (
    Decision,
    NoteRecord,
    Outbox,
    ProgressRecord,
    ResultRecord,
    Source,
    StartRecord,
    TrialRecord,
    TrialState,
)
from ringtune.tuner.scoring import NO_GAIN, Interval, median_interval
from ringtune.tuner.space import Space


@dataclass(frozen=True)
class Trial:
    """A trial of the search; ratio = its step time divided by the default's."""

    knobs: Knobs
    source: Source
    ratio: float
    state: TrialState = "complete"


@dataclass(frozen=True)
class Ending:
    """How a session ends; the version of the knobs is filled in when it is known."""

    decision: Decision
    knobs: Knobs
    gain: Interval
    reason: str


class Reporter:
    """Numbers trials, writes records and reports to the advisor.

    Args:
        space: What is searched.
        advisor: Receives trials and the end.
        meter: Knows the version of the knobs and what was lost.
        options: The session's budget.

    Attributes:
        trials: The trials of the search so far.
        outbox: Records that were not taken yet.
        bytes: Payload a step and rank.
    """

    def __init__(self, space: Space, advisor: Advisor, meter: Meter, options: OnlineOptions) -> None:
        self.trials: list[Trial] = []
        self.outbox = Outbox()
        self.bytes = 0
        self._space, self._advisor, self._meter, self._options = space, advisor, meter, options
        self._number = 0

    def note(self, sentence: str) -> None:
        """Say something that the reader of the journal should know."""
        self.outbox.put(NoteRecord(sentence))

    def start(self, fingerprint: str, stored: Stored) -> None:
        """Record that the session begins."""
        options = self._options
        self.outbox.put(
            StartRecord(
                default=self._space.default,
                fingerprint=fingerprint,
                world=options.world,
                searched=self._space.names,
                max_trials=options.max_trials,
                steps_per_trial=options.steps_per_trial,
                stored_trials=stored.trials,
                not_searched=self._space.pinned,
            )
        )

    def trial(self, trial: Trial, times: list[int], token: int | None) -> None:
        """Record a trial of the search and report it to the advisor."""
        self.trials.append(trial)
        record = self._put(trial, times, _rough_gain(trial, times), self._meter.knobs_version)
        self._advisor.tell(Outcome(record, trial.ratio, token))

    def check(self, comparison: Comparison, holds: bool) -> None:
        """Record the check of a stored setting as trials 0 (the default) and 1, and report it to the advisor."""
        if not comparison.blocks:
            return
        (rival,) = comparison.rivals
        gain, knobs_versions = comparison.gain(rival), comparison.knobs_versions
        source: Source = "confirm" if holds else "stored"
        default = Trial(self._space.default, "default", 1.0)
        for trial, times, seen in (
            (default, comparison.default_samples, NO_GAIN),
            (Trial(rival.knobs, source, 1.0 - gain.median), rival.samples, gain),
        ):
            self.trials.append(trial)
            record = self._put(trial, times, seen, knobs_versions[trial.knobs])
            self._advisor.tell(Outcome(record, trial.ratio))

    def progress(self, phase: Literal["check", "confirm"], comparison: Comparison) -> None:
        """Record how far a comparison is."""
        leader = comparison.leader()
        self.outbox.put(
            ProgressRecord(
                phase=phase,
                blocks=comparison.blocks,
                next_look=comparison.next_look,
                most=LOOKS[-1],
                rivals=comparison.rivals_left,
                knobs=(leader or comparison.rivals[0]).knobs,
                gain=comparison.gain(leader) if leader is not None and len(leader.log_ratios) > 1 else NO_GAIN,
            )
        )

    def comparison(self, comparison: Comparison) -> None:
        """Record the confirmation: the default, then every candidate with its gain."""
        if not comparison.blocks:
            return
        default, knobs_versions = self._space.default, comparison.knobs_versions
        self._put(Trial(default, "confirm", 1.0), comparison.default_samples, NO_GAIN, knobs_versions[default])
        for rival in comparison.rivals:
            state: TrialState = "complete" if len(rival.log_ratios) == comparison.blocks else "stopped-early"
            gain = comparison.gain(rival)
            trial = Trial(rival.knobs, "confirm", 1.0 - gain.median, state)
            self._put(trial, rival.samples, gain, knobs_versions[rival.knobs])

    def result(self, ending: Ending) -> ResultRecord:
        """Record the end and report it to the advisor."""
        result = ResultRecord(
            decision=ending.decision,
            knobs=ending.knobs,
            knobs_version=self._meter.knobs_version,
            gain=ending.gain,
            lost_ns=self._meter.lost_ns,
            reason=ending.reason,
            trials=len(self.trials),
        )
        self.outbox.put(result)
        self._advisor.conclude(result)
        return result

    def _put(self, trial: Trial, times: list[int], gain: Interval, knobs_version: int) -> TrialRecord:
        record = TrialRecord(
            trial=self._number,
            source=trial.source,
            state=trial.state,
            knobs=trial.knobs,
            knobs_version=knobs_version,
            steps=len(times),
            step_ns=median_interval(times),
            gain=gain,
            bytes=self.bytes,
            lost_ns=self._meter.lost_ns,
        )
        self._number += 1
        self.outbox.put(record)
        return record


def _rough_gain(trial: Trial, times: list[int]) -> Interval:
    """Gain of a single trial: its interval comes from the spread of the trial's own steps only."""
    seen = median_interval(times)
    low, high = (math.log(edge / seen.median) for edge in (seen.low, seen.high))
    return Interval(1.0 - trial.ratio, 1.0 - trial.ratio * math.exp(high), 1.0 - trial.ratio * math.exp(low))
