"""Steps of a growing timeline as traces of their own, copied out of its lanes, so that analyses need not hold it."""

from __future__ import annotations

import numpy as np

from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.data.timeline.levels import Lane
from ringtune.timeline.spans import Ints, Trace
from ringtune.timeline.vocabulary import Stage


def last_step(index: TimelineIndex) -> int:
    """Return the last step that every rank that has any has ended; -1 where there is none."""
    return min((int(_steps(index, lane)[-1]) for lane in _step_lanes(index)), default=-1)


def steps_between(index: TimelineIndex, after: int, upto: int) -> Trace:
    """Return the spans of the steps after one up to another, of all ranks."""
    begins = []
    for lane in _step_lanes(index):
        # From the step before on: what belongs to a step may begin a little before the step.
        place = max(0, int(np.searchsorted(_steps(index, lane), after, "right")) - 1)
        begins.append(int(lane.begin[min(place, len(lane) - 1)]))
    since = min(begins, default=0)
    places = [lane.first + np.arange(int(np.searchsorted(lane.begin, since)), len(lane)) for lane in index.lanes]
    return _trace(index, places, after, upto)


def newest_steps(index: TimelineIndex, most_spans: int) -> Trace:
    """Return the newest whole steps of all ranks, about so many spans of them at most; all where there are none."""
    last, lanes = last_step(index), _step_lanes(index)
    if not lanes or last < 0:
        return Trace(index.recorded(), index.instants, index.parts, "merged", "job")
    first = min(int(_steps(index, lane)[0]) for lane in lanes)
    total = sum(map(len, index.lanes))
    every = (last - first + 1) if total <= most_spans else _fitting(index, last, most_spans)
    return steps_between(index, max(first - 1, last - max(2, every)), last)


def _fitting(index: TimelineIndex, last: int, most_spans: int) -> int:
    """How many of the newest steps have so many spans: looked at in an ever larger number of the newest."""
    count = 64
    while True:
        spans = len(steps_between(index, last - count, last).spans)
        if spans * 2 > most_spans or count > last:
            return min(count, max(2, count * most_spans // max(1, spans)))
        count *= 2


def _trace(index: TimelineIndex, places: list[Ints], after: int, upto: int) -> Trace:
    chosen = np.concatenate(places) if places else np.empty(0, dtype=np.int64)
    step = index.spans.step[chosen]
    spans = index.spans.take(chosen[(step > after) & (step <= upto)])
    return Trace(spans, index.instants, index.parts, "merged", "job")


def _step_lanes(index: TimelineIndex) -> list[Lane]:
    return [lane for lane in index.lanes if lane.stage == Stage.STEP and len(lane)]


def _steps(index: TimelineIndex, lane: Lane) -> Ints:
    steps: Ints = index.spans.step[lane.places]
    return steps
