"""Shares of the time: of the whole job for the minimap, and of every rank for one line a rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ringtune.dashboard.data.timeline.levels import Lane
from ringtune.dashboard.data.timeline.shapes import PIXELS, Floats, Shapes, Window, joined
from ringtune.timeline.spans import Ints
from ringtune.timeline.vocabulary import Stage

if TYPE_CHECKING:
    from ringtune.dashboard.data.timeline.index import TimelineIndex

PIECES = 400
OVERVIEW_STAGES = (Stage.COMMUNICATE, Stage.WAIT)


@dataclass(frozen=True)
class Overview:
    """``edges_ns`` has one more than the pieces; ``share[stage]`` the mean over the ranks, between 0 and 1."""

    edges_ns: Ints
    share: dict[Stage, Floats]


def overview(index: TimelineIndex, pieces: int = PIECES) -> Overview:
    """Return the shares over the whole job."""
    extent = index.extent
    edges = np.linspace(extent.begin_ns, extent.end_ns, pieces + 1).astype(np.int64)
    width = np.maximum(np.diff(edges), 1)
    share = {}
    for stage in OVERVIEW_STAGES:
        lanes = [lane for lane in index.lanes if lane.stage == stage]
        if lanes:
            share[stage] = np.clip(_covered(lanes, edges).mean(axis=0) / width, 0, 1)
    return Overview(edges, share)


def _covered(lanes: Iterable[Lane], edges: Ints) -> Floats:
    """Time that each lane's spans cover between edges that follow one another, by lane."""
    until = np.array([_covered_until(lane, edges) for lane in lanes])
    covered: Floats = until[:, 1:] - until[:, :-1]
    return covered


def _covered_until(lane: Lane, edges: Ints) -> Floats:
    """Time that the lane's spans cover up to each edge; within an item of a level it grows evenly."""
    ends = (float(edges[0]), float(edges[-1]))
    level, part = lane.items(ends, (ends[1] - ends[0]) / max(1, len(edges) - 1))
    table = lane if level is None else level
    begin, end, reach = table.begin[part], table.end[part], table.reach[part]
    if not len(begin):
        return np.zeros(len(edges))
    # Time that an earlier item covers does not count again.
    start = begin.copy()
    np.maximum(start[1:], reach[:-1], out=start[1:])
    np.minimum(start, end, out=start)
    length = end - start if level is None else end - start - level.gap[part]
    np.maximum(length, 0, out=length)
    at, value = np.empty(2 * len(begin), np.int64), np.empty(2 * len(begin))
    at[::2], at[1::2] = start, end
    value[1::2] = length.cumsum()
    value[::2] = value[1::2] - length
    found: Floats = np.interp(edges, np.maximum.accumulate(at), value)
    return found


def dominant(lanes: tuple[Lane, ...], window: Window, limit: int) -> Shapes:
    """Return one line of shapes a rank: in every piece of the window the phase that took most of it, and its share.

    Steps and the user's ranges hold everything else, and show only where nothing else does; negotiating and queueing go
    on in the background, and count a tenth. Pieces of the same phase that follow one another are one shape.
    """
    ranks = sorted({lane.rank for lane in lanes})
    pieces = max(8, min(PIXELS, limit // max(1, len(ranks))))
    edges = np.linspace(window.begin_ns, window.end_ns, pieces + 1).astype(np.int64)
    parts = []
    for rank in ranks:
        mine = [(number, lane) for number, lane in enumerate(lanes) if lane.rank == rank]
        covered = _covered((lane for _, lane in mine), edges)
        weight = covered * np.array([[_WEIGHT.get(lane.stage, 1.0)] for _, lane in mine])
        best = weight.argmax(axis=0)
        best[weight.max(axis=0) <= 0] = -1
        parts.append(_runs(mine, (best, covered), edges))
    return joined(parts)


_WEIGHT = {Stage.STEP: 1e-6, Stage.RANGE: 1e-6, Stage.NEGOTIATE: 0.1, Stage.QUEUE: 0.1}


def _runs(mine: list[tuple[int, Lane]], found: tuple[Ints, Floats], edges: Ints) -> Shapes:
    """Join pieces of the same phase that follow one another."""
    best, covered = found
    changes = np.flatnonzero(best[1:] != best[:-1]) + 1
    bounds = np.concatenate(([0], changes, [len(best)]))
    shown = best[bounds[:-1]] >= 0
    starts, ends = bounds[:-1][shown], bounds[1:][shown]
    which = best[starts]
    begin, end = edges[starts], edges[ends]
    until = np.zeros((len(covered), len(best) + 1))
    covered.cumsum(axis=1, out=until[:, 1:])
    first = np.array([_place(mine[at][1], moment) for at, moment in zip(which, begin, strict=True)], dtype=np.int64)
    last = np.array([_place(mine[at][1], moment) for at, moment in zip(which, end, strict=True)], dtype=np.int64)
    return Shapes(
        lane=np.array([mine[at][0] for at in which], dtype=np.int64),
        begin_ns=begin,
        end_ns=end,
        count=np.maximum(last - first, 1),
        share=np.clip((until[which, ends] - until[which, starts]) / np.maximum(end - begin, 1), 0, 1),
        span=np.full(len(starts), -1, dtype=np.int64),
        row=np.full(len(starts), -1, dtype=np.int64),
        hit=np.ones(len(starts), dtype=np.bool_),
        first=first,
    )


def _place(lane: Lane, at_ns: int) -> int:
    """Place of the first span that begins at or after a moment."""
    return lane.first + int(lane.begin.searchsorted(at_ns))
