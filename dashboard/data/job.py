"""A run's trace for analyses: what its timeline's index holds of the last steps, and the model fitted to it.

The index keeps every span that analyses need, so a page that compares or predicts reads no file twice; of a long run
the newest steps say enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.step_totals import WARM_UP_STEPS
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.units import plain
from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.steps import startup
from ringtune.timeline.spans import PartInfo, Trace
from ringtune.tuner.model.calibrate import Model, calibrate

SPAN_LIMIT = 400_000
"""More spans are cut to those of the newest steps: an analysis of so many takes a second or two."""


def recorded(index: TimelineIndex, hosts: Sequence[str] = ()) -> Trace:
    """Return the trace of an index, with the host of every rank; the newest steps alone when it is a long one."""
    spans = index.recorded()
    if len(spans) > SPAN_LIMIT:
        first, last = index.step_range() or (0, 0)
        steps = max(2, (last - first + 1) * SPAN_LIMIT // len(spans))
        spans = spans.take(np.asarray(spans.step) > last - steps)
    parts = tuple(PartInfo(rank, host=hosts[rank] if rank < len(hosts) else "") for rank in index.ranks)
    return Trace(spans, index.instants, parts, "merged", "job")


def steady(trace: Trace, newest: int) -> Trace:
    """Return a trace of its newest steps alone, warm-up left out."""
    step = np.asarray(trace.spans.step)
    last, start = int(step.max(initial=-1)), startup(trace)
    warm = WARM_UP_STEPS if start is None else start.last + 1
    kept = trace.spans.take(step >= max(min(warm, last - 1), last - newest + 1))
    return replace(trace, spans=kept)


def fitted(trace: Trace, name: str) -> Model:
    """Return the cost model fitted to a trace.

    Raises:
        Unreadable: It has no steps to learn from.
    """
    try:
        return calibrate(trace, name)
    except (RingtuneError, ValueError, ArithmeticError) as error:
        raise Unreadable(f"No prediction can be made from the timeline: {plain(error, 300)}") from error
