"""Where each rank's time went: per stage, and communication exposed against overlapped.

Notation: busy = length of the union of a stage's spans (what the wall clock saw); total = sum of their lengths
(larger where spans overlap). Communication is the union of COMMUNICATE spans; exposed is its part inside WAIT,
overlapped the rest, so exposed + overlapped = busy of communicate, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ringtune.timeline.intervals import difference, intersection, length, union
from ringtune.timeline.spans import Ints, SpanTable
from ringtune.timeline.vocabulary import Stage

_COPIES = (Stage.COPY_IN, Stage.COPY_OUT, Stage.COPY_TO_HOST, Stage.COPY_TO_DEVICE)
"""Copying, wherever: into and out of the fusion buffer, from a GPU to the host and back."""


@dataclass(frozen=True)
class StageTime:
    """Spans of one stage on one rank."""

    count: int
    total_ns: int
    busy_ns: int


@dataclass(frozen=True)
class Exposure:
    """Communication against the callers' waiting, on one rank; None where the trace records no waiting at all.

    ``wait_ns`` splits exactly into ``exposed_ns`` (while communicating), ``wait_copy_ns`` (while copying) and
    ``wait_other_ns`` (negotiation, queue: other ranks were late, or the cycle had not come).
    """

    wait_ns: int
    exposed_ns: int
    overlapped_ns: int
    wait_copy_ns: int
    wait_other_ns: int


def covered(spans: SpanTable, *stages: Stage) -> Ints:
    """Return the time covered by these stages as a set of intervals."""
    chosen = np.isin(spans.stage, np.array(stages, dtype=np.uint8))
    return union(spans.begin_ns[chosen], spans.end_ns[chosen])


def stage_times(spans: SpanTable) -> Mapping[str, StageTime]:
    """Return the times of every stage that occurs, by label; the spans are of one rank."""
    found = {}
    for stage in sorted(set(spans.stage.tolist())):
        chosen = spans.stage == stage
        begin, end = spans.begin_ns[chosen], spans.end_ns[chosen]
        found[Stage(stage).label] = StageTime(len(begin), int((end - begin).sum()), length(union(begin, end)))
    return found


def exposure(spans: SpanTable, waits: Ints | None = None) -> Exposure:
    """Split communication and waiting of one rank; ``waits`` stands in for the recorded ones."""
    communicate = covered(spans, Stage.COMMUNICATE)
    wait = covered(spans, Stage.WAIT) if waits is None else waits
    exposed = length(intersection(communicate, wait))
    rest = difference(wait, communicate)
    copying = length(intersection(rest, covered(spans, *_COPIES)))
    return Exposure(
        wait_ns=length(wait),
        exposed_ns=exposed,
        overlapped_ns=length(communicate) - exposed,
        wait_copy_ns=copying,
        wait_other_ns=length(rest) - copying,
    )
