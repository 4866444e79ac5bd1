"""Shares of the time: of the whole job for the minimap, and of every rank for one line a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ringtune.dashboard.data.timeline_levels import Lane
from ringtune.dashboard.data.timeline_shapes import PIXELS, Floats, Shapes, Window, joined
from ringtune.timeline.spans import Ints
from ringtune.timeline.vocabulary import Stage

if TYPE_CHECKING:
    from ringtune.dashboard.data.timeline import TimelineIndex

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
            covered = np.mean([np.diff(_covered_until(lane, edges)) for lane in lanes], axis=0)
            share[stage] = np.clip(covered / width, 0, 1)
    return Overview(edges, share)


def _covered_until(lane: Lane, edges: Ints) -> Floats:
    """Time that the lane's spans cover up to each edge; within an item of a level it grows evenly."""
    ends = (float(edges[0]), float(edges[-1]))
    level, part = lane.items(ends, (ends[1] - ends[0]) / max(1, len(edges) - 1))
    table = lane if level is None else level
    begin, end, reach = table.begin[part], table.end[part], table.reach[part]
    if not len(begin):
        return np.zeros(len(edges))
    gap = np.zeros(len(begin), dtype=np.int64) if level is None else level.gap[part]
    # What an earlier item covers already does not count again.
    start = np.minimum(np.maximum(begin, np.concatenate((begin[:1], reach[:-1]))), end)
    length = np.maximum(end - start - gap, 0)
    total = np.cumsum(length)
    at = np.maximum.accumulate(np.stack((start, end), axis=1).ravel())
    value = np.stack((total - length, total), axis=1).ravel()
    found: Floats = np.interp(edges, at, value)
    return found


def dominant(lanes: tuple[Lane, ...], window: Window, limit: int) -> Shapes:
    """Return one line of shapes a rank: in every piece of the window the phase that took most of it, and its share.

    Steps and the user's ranges hold everything else, and show only where nothing else does; negotiating and queueing go
    on behind a rank's back, and count a tenth. Pieces of the same phase that follow one another are one shape.
    """
    ranks = sorted({lane.rank for lane in lanes})
    pieces = max(8, min(PIXELS, limit // max(1, len(ranks))))
    edges = np.linspace(window.begin_ns, window.end_ns, pieces + 1).astype(np.int64)
    parts = []
    for rank in ranks:
        mine = [(number, lane) for number, lane in enumerate(lanes) if lane.rank == rank]
        covered = np.stack([np.diff(_covered_until(lane, edges)) for _, lane in mine])
        weight = covered * np.array([[_WEIGHT.get(lane.stage, 1.0)] for _, lane in mine])
        best = weight.argmax(axis=0)
        best[weight.max(axis=0) <= 0] = -1
        parts.append(_runs(mine, (best, covered), edges))
    return joined(parts)


_WEIGHT = {Stage.STEP: 1e-6, Stage.RANGE: 1e-6, Stage.NEGOTIATE: 0.1, Stage.QUEUE: 0.1}


def _runs(mine: list[tuple[int, Lane]], found: tuple[Ints, Floats], edges: Ints) -> Shapes:
    """Join pieces of the same phase that follow one another."""
    best, covered = found
    starts = np.flatnonzero(np.diff(best, prepend=-2))
    ends = np.append(starts[1:], len(best))
    starts, ends = starts[best[starts] >= 0], ends[best[starts] >= 0]
    which = best[starts]
    begin, end = edges[starts], edges[ends]
    until = np.concatenate((np.zeros((len(covered), 1)), np.cumsum(covered, axis=1)), axis=1)
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
    return lane.first + int(np.searchsorted(lane.begin, at_ns))
