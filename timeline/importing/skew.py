"""How far the ranks' clocks are apart, by what their collectives allow.

Notation: collective c began at b_r(c) and ended at e_r(c) by the clock of rank r; o = what is to be added to the clock
of rank s to get that of rank r. No rank is done before the last one has begun:

    b_r(c) - e_s(c) <= o <= e_r(c) - b_s(c)    for every c that needs the data of all ranks.

Each c is an interval for o. [low, high] is where most of them agree (all of them, unless the clocks drift or
collectives were matched wrongly). All ranks end at about the same time, so the estimate is the median of
e_r(c) - e_s(c), kept within [low, high]; its error is at most the distance to the farther end.
Where one offset does not suit all collectives and a line does better, it is a line: the clocks drift.

Source: K. Marzullo, Maintaining the Time in a Distributed System, 1984 (agreement of most intervals).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.bandwidth import kind_of
from ringtune.timeline.analysis.batches import MISSING, BatchTable, batch_table
from ringtune.timeline.merging.clocks import HostOffset, drifts, fixed_offset
from ringtune.timeline.spans import Ints, Mask, Trace
from ringtune.timeline.units import time_text

_NEED_ALL = frozenset({"ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "BARRIER"})
_FEW = 4
"""Fewer collectives may agree by chance."""


@dataclass(frozen=True)
class Skew:
    """Clock of one rank against the reference rank's.

    Attributes:
        rank: The rank.
        reference: The rank whose clock counts.
        offset_ns: Add it to the rank's clock.
        error_ns: The offset is right within plus or minus this; None where no collective joins the two.
        low_ns, high_ns: Bounds of the offset.
        drift_ppb: What the clock loses a second, in ns.
        collectives: How many the estimate rests on.
        contradicting: How many no offset of these suits.
        clock: The offset over time.
    """

    rank: int
    reference: int
    offset_ns: int
    error_ns: int | None
    low_ns: int
    high_ns: int
    drift_ppb: int
    collectives: int
    contradicting: int
    clock: HostOffset

    @property
    def proven(self) -> bool:
        """Whether the collectives rule out that the clocks are equal."""
        return not self.low_ns <= 0 <= self.high_ns

    def correction(self) -> HostOffset:
        """What is to be added to the rank's clock: nothing where it may be right, with the bound of the error."""
        if self.proven:
            return self.clock
        bound = None if self.error_ns is None else max(abs(self.low_ns), abs(self.high_ns))
        return fixed_offset(0, bound, "wall")

    def sentence(self, *, applied: bool) -> str:
        """Return what was found, for the user."""
        if self.error_ns is None:
            return f"rank {self.rank}: no collective shared with rank {self.reference}; its clock was not measured"
        drift = f", drift {self.drift_ppb / 1000:+.1f} µs/s" if self.drift_ppb else ""
        sign = "-" if self.offset_ns < 0 else "+"
        text = (
            f"rank {self.rank}: clock skew {sign}{time_text(abs(self.offset_ns))} ± {time_text(self.error_ns)}{drift} "
            f"against rank {self.reference}, by {self.collectives} collectives"
        )
        if self.contradicting:
            text += f" ({self.contradicting} others contradict)"
        return text + ("; corrected" if applied else "; equal clocks are within the bounds, nothing corrected")


def skews(trace: Trace) -> dict[int, Skew]:
    """Return the skew of every rank but the lowest, which is the reference; clocks must stand as they were recorded.

    A rank that shares no collective with the reference is measured over one that does; bounds add up.

    Raises:
        RingtuneError: Less than half of two ranks' collectives agree on an offset: they are of different jobs.
    """
    table = batch_table(trace)
    texts = [kind_of(table.labels[label]) in _NEED_ALL for label in table.label.tolist()]
    table = table.take(np.array(texts, dtype=np.bool_))
    ranks = trace.ranks
    found: dict[int, Skew] = {}
    reached = list(ranks[:1])
    while True:
        joins = ((via, rank) for via in reached for rank in ranks[1:] if rank not in found)
        pairs = ((via, rank, _shared(table, via, rank)) for via, rank in joins)
        nearest = next((pair for pair in pairs if len(pair[2].low)), None)
        if nearest is None:
            break
        via, rank, shared = nearest
        skew = _measured(via, rank, shared, trace.origin_ns)
        found[rank] = skew if via == ranks[0] else _over(found[via], skew)
        reached.append(rank)
    alone = fixed_offset(0, None, "none")
    for rank in ranks[1:]:
        found.setdefault(rank, Skew(rank, ranks[0], 0, None, MISSING, -MISSING, 0, 0, 0, alone))
    return found


@dataclass(frozen=True)
class _Shared:
    """Collectives that two ranks recorded: what each allows, how far apart it ended, and when by the second's clock."""

    low: Ints
    high: Ints
    ends: Ints
    moment: Ints

    def take(self, chosen: Mask) -> _Shared:
        return _Shared(self.low[chosen], self.high[chosen], self.ends[chosen], self.moment[chosen])

    def estimate(self) -> tuple[int, int, int, int, Mask]:
        """Offset, error, bounds, and which collectives agree on them."""
        least, most, agree = agreed(self.low, self.high)
        offset = min(max(int(np.median(self.ends[agree])), least), most)
        return offset, max(most - offset, offset - least), least, most, agree


def _shared(table: BatchTable, via: int, rank: int) -> _Shared:
    if via not in table.ranks or rank not in table.ranks:
        return _Shared(*np.empty((4, 0), dtype=np.int64))
    first, second = table.ranks.index(via), table.ranks.index(rank)
    # What has no length has an end that nobody saw.
    known = (table.begin != MISSING) & (table.end > table.begin)
    both = known[:, first] & known[:, second]
    order = np.flatnonzero(both)[np.argsort(table.end[both, second], kind="stable")]
    begin, end = table.begin[order], table.end[order]
    return _Shared(
        low=begin[:, first] - end[:, second],
        high=end[:, first] - begin[:, second],
        ends=end[:, first] - end[:, second],
        moment=end[:, second],
    )


def _measured(via: int, rank: int, shared: _Shared, origin_ns: int) -> Skew:
    offset, error, least, most, agree = shared.estimate()
    clock = fixed_offset(offset, error, "collectives")
    if not agree.all():
        drifting, suits = _drifting(shared, origin_ns)
        if suits.sum() > agree.sum():
            clock, agree = drifting, suits
            offset, error = clock.at(int(np.median(shared.moment)) + origin_ns), clock.error_ns or 0
            least, most = offset - error, offset + error
    count, other = int(agree.sum()), int((~agree).sum())
    if count < other and len(agree) >= _FEW:
        raise RingtuneError(
            f"ranks {via} and {rank} cannot be of one job: only {count} of {len(agree)} collectives that they share "
            "suit any offset of their clocks; import each job by itself"
        )
    drift = round((clock.drift or 0.0) * 1e9)
    return Skew(rank, via, offset, error, least, most, drift, count, other, clock)


def _drifting(shared: _Shared, origin_ns: int) -> tuple[HostOffset, Mask]:
    """A line: the drift is the median slope of the ends (pairs half the time apart), the rest as without drift.

    A line of another drift that suits all collectives too is off by no more than the error at any of their moments.
    """
    middle, half = int(np.median(shared.moment)), len(shared.moment) // 2
    apart = shared.moment[-half:] - shared.moment[:half]
    slopes = (shared.ends[-half:] - shared.ends[:half]) / np.maximum(apart, 1)
    drift = float(np.median(slopes)) if half else 0.0
    moved = np.rint(drift * (shared.moment - middle)).astype(np.int64)
    level = replace(shared, low=shared.low - moved, high=shared.high - moved, ends=shared.ends - moved)
    offset, error, *_, agree = level.estimate()
    kept = level.take(agree)
    least, most = drifts(*(values.astype(np.float64) for values in (
        kept.moment - middle, (kept.low + kept.high) / 2, (kept.high - kept.low) / 2
    )))  # fmt: skip
    first, last = int(shared.moment[0]), int(shared.moment[-1])
    unsure = max(abs(least), abs(most))
    at_ns = np.array([first, last], dtype=np.int64) + origin_ns
    offsets = np.rint(offset + drift * (np.array([first, last]) - middle)).astype(np.int64)
    error += round(unsure * (last - first)) + 1
    return HostOffset(at_ns, offsets, error, "collectives", drift, unsure, (int(at_ns[0]), int(at_ns[1]))), agree


def _over(onward: Skew, skew: Skew) -> Skew:
    """A rank's skew against the reference, by one against a rank whose own is known; bounds add up."""
    offset, error = skew.offset_ns + onward.offset_ns, (skew.error_ns or 0) + (onward.error_ns or 0)
    return replace(
        skew,
        reference=onward.reference,
        offset_ns=offset,
        error_ns=error,
        low_ns=skew.low_ns + onward.low_ns,
        high_ns=skew.high_ns + onward.high_ns,
        clock=fixed_offset(offset, error, "collectives"),
    )


def agreed(low: Ints, high: Ints) -> tuple[int, int, Mask]:
    """Return the stretch in which most of the intervals [low, high] overlap, and which of them do."""
    edges = np.concatenate((low, high))
    opens = np.repeat([1, -1], len(low))
    order = np.lexsort((-opens, edges))
    best = int(np.cumsum(opens[order]).argmax())
    least, most = int(edges[order[best]]), int(edges[order[best + 1]])
    return least, most, (low <= least) & (high >= most)
