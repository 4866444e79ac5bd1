"""Sessions: one after the other in one training. Pure, like `online`.

An ended session's setting runs on and is watched (`watch`). When the job has changed, a session begins again: its
result so far runs on meanwhile and is checked first; where it gains over the default what it did, it stays (the machine
has become slower or faster, not the job another one), and otherwise the search begins, with this setting and the fixed
start points first. After a session that changed nothing the watch rests for 1000 steps, twice as many each time.
"""

from __future__ import annotations

from collections.abc import Callable

from ringtune.knobs import Knobs
from ringtune.stats import StepStats
from ringtune.tuner.feed import StepFeed
from ringtune.tuner.online import OnlineTuner
from ringtune.tuner.records import NoteRecord, Outbox, Record, ResultRecord
from ringtune.tuner.watch import Shape, Watch, WatchOptions

_REST_STEPS, _MOST_DOUBLINGS = 1000, 10

Begin = Callable[[ResultRecord | None], OnlineTuner]
"""Begins a session; given the result of the session before, None at first."""


class Sessions:
    """The tuner of a whole training.

    Args:
        begin: Begins a session.
        options: What counts as a change of the job.

    Attributes:
        tuner: The session that runs or has ended last.
        count: Sessions begun.
    """

    def __init__(self, begin: Begin, options: WatchOptions | None = None) -> None:
        self._begin, self._options = begin, options
        self._outbox = Outbox()
        self._watch: Watch | None = None
        self._feed = StepFeed()
        self._last: ResultRecord | None = None
        self._in_vain = 0
        self.tuner = begin(None)
        self.count = 1

    @property
    def result(self) -> ResultRecord | None:
        """The end of the present session; None while it runs."""
        return self.tuner.result

    def on_step(self, stats: StepStats) -> Knobs | None:
        """Process a finished step; see `OnlineTuner.on_step`.

        Raises:
            InvariantError: Knobs were handed out and `proposed` was not called.
        """
        if self.tuner.result is not None:
            self._look(stats, self.tuner.result)
            return None
        return self.tuner.on_step(stats)

    def proposed(self, knobs_version: int) -> None:
        """Say which version the knobs of the last `on_step` will have."""
        self.tuner.proposed(knobs_version)

    def take_records(self) -> list[Record]:
        """Return what happened since the last call, in order."""
        return [*self._outbox.take(), *self.tuner.take_records()]

    def interrupt(self, why: str) -> None:
        """End a session that runs (training is over); see `OnlineTuner.interrupt`."""
        self.tuner.interrupt(why)

    def _look(self, stats: StepStats, result: ResultRecord) -> None:
        """Watch the setting that stays; begin again when the job has changed."""
        if not self.tuner.trials:
            return  # nothing can be tuned
        if self._watch is None:
            self._watch = self._watching(result)
        sample = self._feed.add(stats)
        change = self._watch.add(sample) if sample is not None else ""
        if not change:
            return
        self._outbox.put(NoteRecord(f"the job has changed: {change}; tuning again"))
        self._watch, self._last = None, result
        self.tuner = self._begin(result)
        self.count += 1

    def _watching(self, result: ResultRecord) -> Watch:
        changed = self._last is None or self._last.knobs != result.knobs
        self._in_vain = 0 if changed else min(self._in_vain + 1, _MOST_DOUBLINGS)
        self._feed = StepFeed()
        tuned = Shape(self.tuner.workload.collectives, self.tuner.workload.bytes)
        rest = _REST_STEPS << (self._in_vain - 1) if self._in_vain else 0
        return Watch(tuned, result.knobs_version, self._options, rest)
