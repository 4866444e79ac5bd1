"""The tail of a growing timeline: the shapes that a page has not drawn yet, so that only these are sent and drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from ringtune.dashboard.data.timeline.index import Query, TimelineIndex, View
from ringtune.dashboard.data.timeline.levels import Lane
from ringtune.dashboard.data.timeline.overview import dominant
from ringtune.dashboard.data.timeline.shapes import PIXELS, Shapes, Window, blocks_behind, joined, marked

TAIL_LIMIT = 400
"""The approximate limit of shapes per answer: beyond it, neighbours are joined over more pixels."""
PIXELS_JOINED = 2
"""New shapes are a little coarser than the others until the figure is redrawn, because a poll must be cheap."""


def drawn(lanes: Sequence[Lane]) -> list[list[int]]:
    """Return what to remember of a view of the whole timeline: of each lane its rank, stage, rows, and end."""
    return [[lane.rank, int(lane.stage), lane.rows, int(lane.reach[-1])] for lane in lanes]


def tail(index: TimelineIndex, before: Any, query: Query) -> View | None:
    """Return the shapes behind those that were drawn, in the window of the whole timeline as it is now.

    Args:
        index: The timeline.
        before: What `drawn` returned then.
        query: What was asked for; its window is the whole timeline.

    Returns:
        None where they do not fit onto what was drawn: lanes came or became higher.
    """
    lanes = tuple(lane for lane in index.lanes if query.shows(lane))
    if not _alike(before, drawn(lanes)):
        return None
    window, ends = index.clamped(None), [old[3] for old in before]
    shapes = _compact(lanes, ends, window) if query.compact else _fitting(lanes, ends, window)
    found = index.found_behind(query.search, lanes, ends)
    shapes = marked(shapes, found)
    return View(window, lanes, shapes, sum(map(len, lanes)), 0, found is not None, query.compact)


def _fitting(lanes: tuple[Lane, ...], ends: list[int], window: Window) -> Shapes:
    """Single spans and blocks of each lane, few enough."""
    pixel_ns = max(1.0, PIXELS_JOINED * window.length_ns / PIXELS)
    while True:
        found = blocks_behind(lanes, ends, window.end_ns, pixel_ns)
        if len(found) <= TAIL_LIMIT or pixel_ns > window.length_ns:
            return found
        pixel_ns *= 4


def _compact(lanes: tuple[Lane, ...], ends: list[int], window: Window) -> Shapes:
    """One line a rank, behind the last of it that was drawn."""
    parts, first = list[Shapes](), 0
    for _, group in groupby(lanes, key=lambda lane: lane.rank):
        mine = tuple(group)
        begin, end = max(ends[first : first + len(mine)]), max(int(lane.reach[-1]) for lane in mine)
        if begin < end:
            pieces = math.ceil((end - begin) * PIXELS / (PIXELS_JOINED * window.length_ns))
            found = dominant(mine, Window(float(begin), float(end)), min(TAIL_LIMIT, pieces))
            parts.append(replace(found, lane=found.lane + first))
        first += len(mine)
    return joined(parts)


def _alike(before: Any, now: Sequence[Sequence[int]]) -> bool:
    """Whether lanes are the same but for their ends; what was drawn comes from the browser, which may send anything."""
    if not isinstance(before, list) or len(before) != len(now):
        return False
    for old, new in zip(before, now, strict=True):
        if not (isinstance(old, list) and len(old) == 4 and all(isinstance(value, int) for value in old)):
            return False
        if list(new[:3]) != old[:3] or not 0 <= old[3] <= new[3]:
            return False
    return True
