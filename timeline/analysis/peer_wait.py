"""Which peers were waited for: batches that were ready on a rank, while another rank was late.

Under a step schedule there is no negotiation that could say so: each rank records by itself whom it waited for last
(`await` spans with ``peer``). A negotiated batch is split on the aligned clocks instead: until the last rank had
submitted, the others waited for it; the rest is what agreeing cost (*control*). On these clocks too, a receive waits
for a late sender, and a send for a late receiver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtune.timeline.analysis.messages import message_waits
from ringtune.timeline.distinct import distinct, numbered_rows
from ringtune.timeline.spans import Ints, SpanTable
from ringtune.timeline.vocabulary import Stage


@dataclass(frozen=True)
class PeerWait:
    """How long rank ``rank`` waited for rank ``peer``: ready for a batch, for its data within one, or for a message."""

    rank: int
    peer: int
    count: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True)
class Negotiation:
    """One rank's time from submit to agreement, summed over its negotiated tensors.

    ``waiting_ns`` (for the last rank to submit) + ``control_ns`` = the time in `negotiate`.
    """

    rank: int
    waiting_ns: int
    control_ns: int


def peer_waits(spans: SpanTable) -> tuple[PeerWait, ...]:
    """Sum the recorded waits by rank and peer, and those for the other end of a message."""
    waits = spans.of_stage(Stage.AWAIT)
    peer = waits.fact("peer")
    waits, peer = waits.take(peer >= 0), peer[peer >= 0]
    recorded = (waits.rank.astype(np.int64), peer, waits.duration_ns)
    rank, peer, length = (np.concatenate(pair) for pair in zip(recorded, message_waits(spans), strict=True))
    return _by_pair(rank, peer, length)


def negotiations(spans: SpanTable) -> tuple[Negotiation, ...]:
    """Split every rank's negotiated tensors; without those of step schedules and those that a rank did not record."""
    found = _negotiated(spans)
    of_rank = [(rank, found.rank == rank) for rank in distinct(found.rank).tolist()]
    return tuple(
        Negotiation(rank, int(found.waiting[own].sum()), int(found.control[own].sum())) for rank, own in of_rank
    )


def negotiation_peer_waits(spans: SpanTable) -> tuple[PeerWait, ...]:
    """Sum what `negotiations` calls waiting by rank and peer, which is the last rank to submit the tensor."""
    found = _negotiated(spans)
    chosen = found.waiting > 0
    return _by_pair(found.rank[chosen], found.last[chosen], found.waiting[chosen])


@dataclass(frozen=True)
class _Negotiated:
    """Negotiated tensors that every rank recorded: whose each is, who submitted it last, and the wait for that one."""

    rank: Ints
    last: Ints
    waiting: Ints
    control: Ints


def _negotiated(spans: SpanTable) -> _Negotiated:
    rows = np.flatnonzero(spans.in_stage(Stage.NEGOTIATE) & (spans.batch > 0))
    rows = rows[~spans.says("step_schedule", 1)[rows]]
    ranks = len(distinct(spans.rank[rows]))
    if ranks < 2:
        return _Negotiated(*[np.empty(0, dtype=np.int64)] * 4)
    _, key = numbered_rows(spans.batch[rows], spans.tensor[rows])
    everyone = np.bincount(key) == ranks
    if not everyone.all():
        rows, key = rows[everyone[key]], key[everyone[key]]
    begin, end, rank = spans.begin_ns[rows], spans.end_ns[rows], spans.rank[rows].astype(np.int64)
    submitted = np.full(len(everyone), -(2**62))
    np.maximum.at(submitted, key, begin)
    found = np.flatnonzero(begin == submitted[key])
    latest = np.zeros(len(everyone), dtype=np.int64)
    latest[key[found]] = found  # of equal keys the last one stays
    last = latest[key]
    waiting = np.clip(begin[last], begin, end) - begin
    return _Negotiated(rank, rank[last], waiting, end - begin - waiting)


def _by_pair(rank: Ints, peer: Ints, length: Ints) -> tuple[PeerWait, ...]:
    pairs, place = numbered_rows(rank, peer)
    return tuple(
        PeerWait(int(who), int(late), int(chosen.sum()), int(length[chosen].sum()), int(length[chosen].max()))
        for number, (who, late) in enumerate(zip(rank[pairs], peer[pairs], strict=True))
        for chosen in [place == number]
    )
