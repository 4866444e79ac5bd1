"""When ranks waited for one that was late, and when bytes moved that no rank was late for.

A rank waits for a late one from its own submission of a batch to that of the batch's last rank, by the aligned clocks;
from its send or receive to the other rank's call of the same message; and while it records itself that a peer had not
come to a batch yet (`await` spans). Blocked time within that is waiting for a late rank: no faster network could
shorten it. Moments that are closer than the clocks' error tell nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ringtune.timeline.analysis.arrivals import clock_errors
from ringtune.timeline.analysis.batches import MISSING, BatchTable, batch_table, errors_between, numbered
from ringtune.timeline.analysis.intervals import union
from ringtune.timeline.analysis.messages import messages
from ringtune.timeline.distinct import distinct, distinct_numbers
from ringtune.timeline.spans import Ints, Mask, SpanTable, Trace, once_a_trace
from ringtune.timeline.vocabulary import Stage

_NEVER: Ints = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class LateWaits:
    """See the module.

    Attributes:
        waits: By rank, the time in which a batch or message was ready on it and another rank was late.
        moving: Collectives and messages, each from when its last rank had submitted it. Other libraries' begin earlier.
    """

    waits: Mapping[int, Ints]
    moving: SpanTable

    def of_rank(self, rank: int) -> Ints:
        """Return when the rank waited for a late one."""
        return self.waits.get(rank, _NEVER)


@once_a_trace
def late_waits(trace: Trace) -> LateWaits:
    """Find them; batches that one of their ranks did not record tell nothing."""
    table = batch_table(trace)
    table = table.take(table.whole).with_data()
    spans, ready = _messages_from_the_last(trace, numbered(trace.spans))
    runs = spans.take(spans.in_stage(Stage.COMMUNICATE))
    found = {rank: [ready[ready[:, 0] == rank, 1:]] for rank in distinct(ready[:, 0]).tolist()}
    if len(table.ids):
        last, late = _last_submissions(trace, table)
        for column, rank in enumerate(table.ranks):
            chosen = late[:, column]
            until = np.minimum(last, table.end[:, column])
            found.setdefault(rank, []).append(np.stack((table.submit[chosen, column], until[chosen]), axis=1))
        runs = _from_the_last(runs, table, np.where(late.any(axis=1), last, MISSING))
    awaited = _awaited(spans, runs)
    for rank in distinct(awaited.rank).tolist():
        mine = awaited.of_rank(rank)
        found.setdefault(rank, []).append(np.stack((mine.begin_ns, mine.end_ns), axis=1))
    joined = {rank: np.concatenate(times) for rank, times in found.items()}
    return LateWaits({rank: union(times[:, 0], times[:, 1]) for rank, times in joined.items()}, runs)


def _messages_from_the_last(trace: Trace, spans: SpanTable) -> tuple[SpanTable, Ints]:
    """Return spans whose messages begin when both ranks had called them, and who waited for that: rank, begin, end."""
    ends = messages(spans)
    if not len(ends.send):
        return spans, np.empty((0, 3), dtype=np.int64)
    both = np.stack((ends.send, ends.receive))
    begin, rank = spans.begin_ns[both], spans.rank[both].astype(np.int64)
    last = begin.max(axis=0)
    late = last - begin > clock_errors(trace).between(rank[0], rank[1])
    until = np.minimum(last, spans.end_ns[both])
    moved, known = spans.begin_ns.copy(), late.any(axis=0)
    moved[both[:, known]] = until[:, known]
    return replace(spans, begin_ns=moved), np.stack((rank[late], begin[late], until[late]), axis=1)


def _last_submissions(trace: Trace, table: BatchTable) -> tuple[Ints, Mask]:
    """Return when the last rank of each batch submitted it, and which ranks (columns) had surely done so before."""
    errors = errors_between(trace, table, clock_errors(trace))
    submit = np.where(table.members, table.submit, MISSING)
    latest = submit.argmax(axis=1)
    last = submit[np.arange(len(submit)), latest]
    return last, table.members & (last[:, None] - submit > errors[latest])


def _from_the_last(runs: SpanTable, table: BatchTable, last: Ints) -> SpanTable:
    """Return collectives that begin no earlier than their last submission."""
    row = np.minimum(np.searchsorted(table.ids, runs.batch), len(table.ids) - 1)
    known = (table.ids[row] == runs.batch) & (runs.batch > 0)
    begin = np.where(known, np.maximum(runs.begin_ns, last[row]), runs.begin_ns)
    return replace(runs, begin_ns=np.minimum(begin, runs.end_ns))


def _awaited(spans: SpanTable, runs: SpanTable) -> SpanTable:
    """Return the waits for a peer that ended before the rank's own collective began; within it data is awaited."""
    waits = spans.of_stage(Stage.AWAIT)
    waits = waits.take((waits.fact("peer") >= 0) & (waits.batch > 0))
    if not len(waits) or not len(runs):
        return waits.take(slice(0))
    batches, number = distinct_numbers(np.concatenate((runs.batch, waits.batch)))
    rank = np.concatenate((runs.rank, waits.rank)).astype(np.int64)
    key = rank * len(batches) + number
    own, order = key[len(runs) :], np.argsort(key[: len(runs)], kind="stable")
    place = np.minimum(np.searchsorted(key[order], own), len(order) - 1)
    return waits.take((key[order][place] == own) & (waits.end_ns <= runs.begin_ns[order][place]))
