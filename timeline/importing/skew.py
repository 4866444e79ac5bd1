"""How far the ranks' clocks are apart, by what their collectives allow.

Notation: collective c began at b_r(c) and ended at e_r(c) by the clock of rank r; o = what is to be added to the clock
of rank s to get that of rank r. No rank is done before the last one has begun:

    b_r(c) - e_s(c) <= o <= e_r(c) - b_s(c)    for every c that needs the data of all ranks.

Each c is an interval for o. [low, high] is where most of them agree (all of them, unless the clocks drift or
collectives were matched wrongly). That alone says little where one rank is always late: the others wait for long.
But all ranks end at about the same time: within the time from the last one's begin to its end, t(c) = the shortest span
of c, which no clock but its own has measured. So the estimate is the median of e_r(c) - e_s(c), over the quarter of the
collectives with the least t, kept within [low, high]; its error is the median of t plus the distance from the estimate,
or the distance to the farther of low and high, if that is less.
Where one offset does not suit all collectives and a line does better, it is a line: the clocks drift.

Source: K. Marzullo, Maintaining the Time in a Distributed System, 1984 (agreement of most intervals).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.bandwidth import kind_of
from ringtune.timeline.analysis.batches import MISSING, batch_table
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
        surely: Whether a clock without any skew is impossible, wherever the ranks ended.
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
    surely: bool
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


def skews(trace: Trace) -> tuple[dict[int, Skew], list[tuple[int, ...]]]:
    """Return the skew of every rank but the lowest, which is the reference, and which ranks share a clock.

    Ranks of a host share its clock unless their collectives rule that out; what any of them shows bounds it. A clock
    that shares no collective with the reference's is measured over one that does; bounds add up.

    Args:
        trace: All ranks, with their clocks as they were recorded.

    Raises:
        RingtuneError: Less than half of two ranks' collectives agree on an offset: they are of different jobs.
    """
    moments = _moments(trace)
    clocks = _clocks(trace, moments)
    found: dict[int, Skew] = {}
    for rank in clocks[0][1:]:
        shared = _shared(moments, clocks[0][:1], (rank,))
        found[rank] = _measured(clocks[0][0], rank, shared, trace.origin_ns)
    reached = clocks[:1]
    while len(reached) < len(clocks):
        others = [clock for clock in clocks if clock not in reached]
        pairs = ((via, clock, _shared(moments, via, clock)) for via in reached for clock in others)
        nearest = next((pair for pair in pairs if len(pair[2].low)), None)
        if nearest is None:
            alone = Skew(0, clocks[0][0], 0, None, MISSING, -MISSING, False, 0, 0, 0, fixed_offset(0, None, "none"))
            found |= {rank: replace(alone, rank=rank) for clock in others for rank in clock}
            break
        via, clock, shared = nearest
        skew = _measured(via[0], clock[0], shared, trace.origin_ns)
        if via is not clocks[0]:
            skew = _over(found[via[0]], skew)
        found |= {rank: replace(skew, rank=rank) for rank in clock}
        reached.append(clock)
    return dict(sorted(found.items())), clocks


@dataclass(frozen=True)
class _Moments:
    """Begin and end by rank and collective, `MISSING` where nothing or no length was recorded; the shortest spans."""

    begin: dict[int, Ints]
    end: dict[int, Ints]
    shortest: Ints


def _moments(trace: Trace) -> _Moments:
    # A batch is named by its collective, not by its tensor.
    table = batch_table(replace(trace, spans=replace(trace.spans, tensor=np.zeros_like(trace.spans.tensor))))
    chosen = np.array([kind_of(table.labels[label]) in _NEED_ALL for label in table.label.tolist()], dtype=np.bool_)
    table = table.take(chosen)
    # What has no length has an end that nobody saw.
    known = (table.begin != MISSING) & (table.end > table.begin)
    begin, end = (np.where(known, column, MISSING) for column in (table.begin, table.end))
    nothing = np.full(len(table.ids), MISSING, dtype=np.int64)
    places = {rank: column for column, rank in enumerate(table.ranks)}
    of_rank = [(rank, places.get(rank)) for rank in trace.ranks]
    return _Moments(
        {rank: nothing if at is None else begin[:, at] for rank, at in of_rank},
        {rank: nothing if at is None else end[:, at] for rank, at in of_rank},
        np.where(known, table.end - table.begin, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max),
    )


def _clocks(trace: Trace, moments: _Moments) -> list[tuple[int, ...]]:
    """Ranks by the clock that they share; the lowest rank's first."""
    hosts = {part.rank: part.host for part in trace.parts}
    clocks: list[tuple[int, ...]] = []
    for rank in trace.ranks:
        for at, clock in enumerate(clocks):
            same = hosts.get(rank) and hosts.get(rank) == hosts.get(clock[0])
            if same and not _measured(clock[0], rank, _shared(moments, clock, (rank,)), 0).surely:
                clocks[at] = (*clock, rank)
                break
        else:
            clocks.append((rank,))
    return clocks


@dataclass(frozen=True)
class _Shared:
    """Collectives that the ranks of two clocks recorded: what each allows, how far apart it ended, its shortest span,
    and when it ended by the second clock.
    """

    low: Ints
    high: Ints
    ends: Ints
    shortest: Ints
    moment: Ints

    def estimate(self) -> tuple[int, int, int, int, Mask]:
        """Offset, error, bounds, and which collectives agree on these."""
        least, most, agree = agreed(self.low, self.high)
        quick = agree & (self.shortest <= np.quantile(self.shortest[agree], 0.25))
        ends = self.ends[quick]
        offset = min(max(int(np.median(ends)), least), most)
        error = int(np.ceil(np.median(self.shortest[quick] + np.abs(ends - offset))))
        return offset, min(error, max(most - offset, offset - least)), least, most, agree


def _shared(moments: _Moments, via: tuple[int, ...], clock: tuple[int, ...]) -> _Shared:
    """What the ranks of two clocks recorded both: no rank is done before the last of all has begun."""
    (begin, end), (other_begin, other_end) = (
        (
            np.max([moments.begin[rank] for rank in ranks], axis=0),
            np.min([np.where(moments.end[rank] == MISSING, -MISSING, moments.end[rank]) for rank in ranks], axis=0),
        )
        for ranks in (via, clock)
    )
    both = np.flatnonzero((begin != MISSING) & (other_begin != MISSING))
    order = both[np.argsort(other_end[both], kind="stable")]
    return _Shared(
        low=(begin - other_end)[order],
        high=(end - other_begin)[order],
        ends=(end - other_end)[order],
        shortest=moments.shortest[order],
        moment=other_end[order],
    )


def _measured(via: int, rank: int, shared: _Shared, origin_ns: int) -> Skew:
    if not len(shared.low):
        return Skew(rank, via, 0, None, MISSING, -MISSING, False, 0, 0, 0, fixed_offset(0, None, "none"))
    offset, error, least, most, agree = shared.estimate()
    surely = not least <= 0 <= most
    clock = fixed_offset(offset, error, "collectives")
    if not agree.all():
        drifting, suits = _drifting(shared, origin_ns)
        if suits.sum() > agree.sum():
            clock, agree = drifting, suits
            offset, error = clock.at(int(np.median(shared.moment)) + origin_ns), clock.error_ns or 0
            least, most = offset - error, offset + error
    least, most = max(least, offset - error), min(most, offset + error)
    count, other = int(agree.sum()), int((~agree).sum())
    if count < other and len(agree) >= _FEW:
        raise RingtuneError(
            f"ranks {via} and {rank} cannot be of one job: only {count} of {len(agree)} collectives that they share "
            "suit any offset of their clocks; import each job by itself"
        )
    drift = round((clock.drift or 0.0) * 1e9)
    return Skew(rank, via, offset, error, least, most, surely, drift, count, other, clock)


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
    quick = agree & (np.abs(level.ends - offset) <= level.shortest)
    low, high = np.maximum(level.low, level.ends - level.shortest), np.minimum(level.high, level.ends + level.shortest)
    moment, low, high = ((column[quick] - zero).astype(np.float64) for column, zero in (
        (level.moment, middle), (low, offset), (high, offset)
    ))  # fmt: skip
    least, most = drifts(moment, (low + high) / 2, (high - low) / 2) if np.unique(moment).size > 1 else (-1e-4, 1e-4)
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
