"""Whether the aligned clocks are plausible: nothing is received before it was sent.

Every rank's result of a reduction holds every other rank's data, so no rank's collective can end before all ranks have
begun theirs (under a step schedule, where data travels before a rank knows that all agree: submitted theirs); and no
rank can have learned that a tensor may run before all have submitted it. Each batch that all ranks recorded is checked
for both. A violation says that the clocks are aligned worse than their error bounds claim (those of GPUs are
subtracted).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtune.timeline.analysis.batches import MISSING, batch_table
from ringtune.timeline.analysis.staged import device_clock_errors
from ringtune.timeline.distinct import distinct
from ringtune.timeline.spans import Ints, Mask, Trace

_JOINING = ("RING_ALLREDUCE", "RING_REDUCESCATTER", "RING_BARRIER")
"""Collectives whose result needs every rank. The others may need only some ranks, or none for empty rows."""


@dataclass(frozen=True)
class Causality:
    """How many batches over how many hosts were checked, and what was found.

    ``worst_ns``: the largest time by which something was received before it was sent; 0 when nothing was.
    """

    checked: int
    violations: int
    worst_ns: int


def causality(trace: Trace) -> Causality:
    """Check all batches that every rank recorded; traces of one rank have nothing to check."""
    table = batch_table(trace)
    if len(table.ranks) < 2:
        return Causality(0, 0, 0)
    whole = table.take(table.complete)
    needs_all = _needs_all(trace, whole.ids)
    scheduled = np.isin(whole.ids, trace.spans.batch[trace.spans.says("step_schedule", 1)])
    gave = np.where(scheduled[:, None], whole.submit, whole.begin)
    early = np.zeros(len(whole.ids), dtype=np.int64)
    agreed = whole.negotiated & (whole.submit != MISSING).all(axis=1)
    agreed &= (whole.agreed > whole.submit).any(axis=1)  # of what other backends carry no rank learns of an agreement
    # Of two ranks, each by its GPU's clock.
    allowed = np.where(whole.directly, 2 * max(device_clock_errors(trace).values(), default=0), 0)
    for sent, received, applies in (
        (gave, whole.end, needs_all),
        (whole.submit, whole.agreed, agreed),
    ):
        gap = sent.max(axis=1, initial=MISSING) - received.min(axis=1, initial=-MISSING)
        early = np.maximum(early, np.where(applies, gap - allowed, 0))
    return Causality(len(early), int((early > 0).sum()), int(early.max(initial=0)))


def _needs_all(trace: Trace, ids: Ints) -> Mask:
    """Which of these batches are of a kind that needs every rank, and move anything at all."""
    spans = trace.spans
    joining = np.flatnonzero(spans.name_mask(*_JOINING))
    moves = (spans.bytes[joining] > 0) | spans.name_mask("RING_BARRIER")[joining]
    found: Mask = np.isin(ids, distinct(spans.batch[joining[moves]]))
    return found
