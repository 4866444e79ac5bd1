"""Which collectives of the ranks are one: by number where the recording has it, else by order.

A collective that its reader numbered alike on all ranks (group and sequence number) is one batch. The others are the
n-th of their name in their group and step. Sends and receives belong to pairs of ranks and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.bandwidth import kind_of
from ringtune.timeline.analysis.batches import numbered
from ringtune.timeline.spans import Ints, SpanTable, Trace, concatenate
from ringtune.timeline.vocabulary import Stage

_PEER_TO_PEER = re.compile(r"send|recv", re.IGNORECASE)
SAME_BYTES = frozenset({"ALLREDUCE", "BROADCAST"})
"""Collectives whose ranks all give or take the same number of bytes."""


@dataclass(frozen=True)
class Matches:
    """How far the ranks' collectives found each other.

    Attributes:
        collectives: How many there are, each counted once for all its ranks.
        matched: Those which every rank of their group recorded, two at least.
        numbered: Those that their recording numbers; the others go by order.
        peer_to_peer: Sends and receives, which are not matched.
        absent: By rank, how many collectives of its groups it did not record.
    """

    collectives: int
    matched: int
    numbered: int
    peer_to_peer: int
    absent: dict[int, int]

    def sentence(self) -> str:
        """Return what the user should know."""
        if not self.collectives:
            return "no collectives found: the ranks cannot be compared"
        how = "by number" if self.numbered == self.collectives else "by order within each step"
        if 0 < self.numbered < self.collectives:
            how = f"{self.numbered} by number, the others {how}"
        text = f"{self.matched} of {self.collectives} collectives matched over their ranks, {how}"
        if self.matched < self.collectives:
            lacking = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(self.absent.items()) if count)
            text += f"; not recorded by {lacking}" if lacking else "; the others are of one rank alone"
        return text + (f"; {self.peer_to_peer} sends and receives left as they are" if self.peer_to_peer else "")


def matched(traces: Sequence[Trace]) -> tuple[list[Trace], Matches]:
    """Return the traces with equal numbers of batches for what is one collective, and how many were matched.

    Raises:
        RingtuneError: Most of what has one number is another collective on another rank: they are of different jobs.
    """
    spans = concatenate([trace.spans for trace in traces])
    where = np.flatnonzero(spans.in_stage(Stage.COMMUNICATE))
    moves = spans.take(where)
    peers = np.array([not kind_of(name) and bool(_PEER_TO_PEER.search(name)) for name in spans.names] or [False])
    # An all-to-all is sends and receives too, but has a number of its group.
    pairs = peers[moves.name] & (moves.batch == 0)
    where, moves = where[~pairs], moves.take(~pairs)
    batch, by_number = _batches(moves)
    ranks = sorted({part.rank for trace in traces for part in trace.parts})
    total, whole, absent = _counts(moves, batch, ranks)
    found = Matches(total, whole, by_number, int(pairs.sum()), absent)
    _check_one_job(traces, moves, batch)
    column = np.zeros(len(spans), dtype=np.int64)
    column[where] = batch
    pieces = np.split(column, np.cumsum([len(trace.spans) for trace in traces])[:-1])
    return [
        replace(trace, spans=replace(trace.spans, batch=piece)) for trace, piece in zip(traces, pieces, strict=True)
    ], found


def _batches(moves: SpanTable) -> tuple[Ints, int]:
    """Numbers from 1 in the order of time, and how many of them the recording numbered."""
    keys = moves.batch.copy()
    ordered = np.flatnonzero(keys == 0)
    known = len(np.unique(keys[keys > 0]))
    if len(ordered):
        rest = moves.take(ordered)
        _, name = np.unique(np.stack((rest.name, rest.tensor, _group(rest))), axis=1, return_inverse=True)
        keys[ordered] = -numbered(replace(rest, name=name.reshape(-1).astype(np.int32))).batch
    _, number = np.unique(keys, return_inverse=True)
    first = np.full(int(number.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, number, moves.begin_ns)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(1, len(first) + 1)
    return place[number], known


def _group(moves: SpanTable) -> Ints:
    return moves.fact("process_set", 0)


def _counts(moves: SpanTable, batch: Ints, ranks: Collection[int]) -> tuple[int, int, dict[int, int]]:
    """Collectives, those that all ranks of their group recorded, and how many each rank lacks.

    The group without a number is of all ranks, others are of those that recorded something of them.
    """
    number, rank, group = np.unique(np.stack((batch, moves.rank.astype(np.int64), _group(moves))), axis=1)
    total, matched, absent = 0, 0, dict.fromkeys(ranks, 0)
    for one in np.unique(group).tolist():
        inside = group == one
        members = set(ranks) if one == 0 else set(rank[inside].tolist())
        _, present = np.unique(number[inside], return_counts=True)
        total += len(present)
        matched += int(np.sum((present == len(members)) & (present > 1)))
        for member in members:
            absent[member] += len(present) - int(np.sum(rank[inside] == member))
    return total, matched, absent


def _check_one_job(traces: Sequence[Trace], moves: SpanTable, batch: Ints) -> None:
    kinds = [kind_of(name) for name in moves.names]
    words, kind_of_name = np.unique(kinds or [""], return_inverse=True)
    kind = kind_of_name.reshape(-1)[moves.name]
    sized = np.isin(kind, np.flatnonzero(np.isin(words, list(SAME_BYTES))))
    what = np.stack((kind, np.where(sized, moves.bytes, 0)))
    order = np.argsort(batch, kind="stable")
    same = batch[order][1:] == batch[order][:-1]
    other = np.flatnonzero(same & np.any(what[:, order][:, 1:] != what[:, order][:, :-1], axis=0))
    shared = len(np.unique(batch[order][1:][same]))
    if len(np.unique(batch[order][other])) * 2 <= shared:
        return
    first, second = order[other[0]], order[other[0] + 1]
    texts = [
        f"{moves.names[moves.name[at]]} of {int(moves.bytes[at])} bytes on rank {int(moves.rank[at])}"
        for at in (first, second)
    ]
    raise RingtuneError(
        f"these {len(traces)} recordings are not of one job: what should be one collective is {texts[0]} and "
        f"{texts[1]}; import each job by itself"
    )
