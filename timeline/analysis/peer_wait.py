"""Which peers were waited for: batches that were ready on a rank, while another rank was late.

Under a step schedule there is no negotiation that could say so: each rank records by itself whom it waited for last
(`await` spans with ``peer``). A negotiated batch is split on the aligned clocks instead: until the last rank had
submitted, the others waited for it; the rest is what agreeing cost (*control*).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtune.timeline.distinct import distinct, numbered_rows
from ringtune.timeline.spans import Ints, SpanTable
from ringtune.timeline.vocabulary import Stage


@dataclass(frozen=True)
class PeerWait:
    """How long rank ``rank`` waited for rank ``peer``: ready for a batch, or for its data within one."""

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
    """Sum the recorded waits by rank and peer."""
    waits = spans.of_stage(Stage.AWAIT)
    peer = waits.fact("peer")
    waits, peer = waits.take(peer >= 0), peer[peer >= 0]
    return _by_pair(waits.rank.astype(np.int64), peer, waits.duration_ns)


def negotiations(spans: SpanTable) -> tuple[Negotiation, ...]:
    """Split every rank's negotiated tensors; without those of step schedules and those that a rank did not record."""
    rows, _, waiting = _negotiated(spans)
    control = rows.duration_ns - waiting
    return tuple(
        Negotiation(int(rank), int(waiting[rows.rank == rank].sum()), int(control[rows.rank == rank].sum()))
        for rank in distinct(rows.rank)
    )


def negotiation_peer_waits(spans: SpanTable) -> tuple[PeerWait, ...]:
    """Sum what `negotiations` calls waiting by rank and peer, which is the last rank to submit the tensor."""
    rows, last, waiting = _negotiated(spans)
    chosen = waiting > 0
    return _by_pair(rows.rank[chosen].astype(np.int64), last[chosen], waiting[chosen])


def _negotiated(spans: SpanTable) -> tuple[SpanTable, Ints, Ints]:
    """Negotiated tensors that every rank recorded; the rank that submitted each last; how long each waited for it."""
    rows = spans.of_stage(Stage.NEGOTIATE)
    rows = rows.take((rows.batch > 0) & (rows.fact("step_schedule", 0) != 1))
    ranks = len(distinct(rows.rank))
    if ranks < 2:
        return rows.take(slice(0)), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    _, key = numbered_rows(rows.batch, rows.tensor)
    everyone = np.bincount(key) == ranks
    rows, key = rows.take(everyone[key]), key[everyone[key]]
    order = np.argsort(rows.begin_ns, kind="stable")
    latest = np.zeros(len(everyone), dtype=np.int64)
    latest[key[order]] = order  # of equal keys the last one stays: the latest submit
    waiting = np.clip(rows.begin_ns[latest[key]], rows.begin_ns, rows.end_ns) - rows.begin_ns
    return rows, rows.rank[latest[key]].astype(np.int64), waiting


def _by_pair(rank: Ints, peer: Ints, length: Ints) -> tuple[PeerWait, ...]:
    pairs, place = numbered_rows(rank, peer)
    return tuple(
        PeerWait(int(who), int(late), int(chosen.sum()), int(length[chosen].sum()), int(length[chosen].max()))
        for number, (who, late) in enumerate(zip(rank[pairs], peer[pairs], strict=True))
        for chosen in [place == number]
    )
