"""The whole job in a few hundred pieces: what share of the time ranks communicated and waited, for the minimap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtune.dashboard.data.timeline import Floats, TimelineIndex
from ringtune.dashboard.data.timeline_levels import Lane
from ringtune.timeline.spans import Ints
from ringtune.timeline.vocabulary import Stage

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
    level = lane.levels[-1] if lane.levels else None
    begin, end = (lane.begin, lane.end) if level is None else (level.begin, level.end)
    reach = lane.reach if level is None else level.reach
    gap = np.zeros(len(begin), dtype=np.int64) if level is None else level.gap
    # What an earlier item covers already does not count again.
    start = np.maximum(begin, np.concatenate((begin[:1], reach[:-1])))
    start = np.minimum(start, end)
    total = np.cumsum(np.maximum(end - start - gap, 0))
    at = np.maximum.accumulate(np.stack((start, end), axis=1).ravel())
    value = np.stack((total - np.maximum(end - start - gap, 0), total), axis=1).ravel()
    found: Floats = np.interp(edges, at, value)
    return found
