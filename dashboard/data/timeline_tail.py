"""What a growing timeline has behind what a page has drawn of it already: only that has to be sent and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringtune.dashboard.data.timeline import TimelineIndex, View
from ringtune.dashboard.data.timeline_shapes import PIXELS, Shapes, Window, blocks, joined, marked

TAIL_LIMIT = 400
"""About so many shapes are sent at most: of more, neighbours are joined over more pixels."""
PIXELS_JOINED = 2
"""What comes is drawn a little coarser than the rest, until all is drawn again: a beat must be cheap."""


def drawn(index: TimelineIndex) -> list[list[int]]:
    """Return what to remember of a view of the whole timeline: of each lane its rank, stage, rows, and end."""
    return [[lane.rank, int(lane.stage), lane.rows, int(lane.reach[-1])] for lane in index.lanes]


def tail(index: TimelineIndex, before: Any) -> View | None:
    """Return the shapes behind those that were drawn, in the window of the whole timeline as it is now.

    Args:
        index: The timeline.
        before: What `drawn` returned then.

    Returns:
        None where they do not fit onto what was drawn: lanes came or became higher.
    """
    now = drawn(index)
    if not _alike(before, now):
        return None
    window = index.clamped(None)
    pixel_ns = max(1.0, PIXELS_JOINED * window.length_ns / PIXELS)
    while True:
        parts = [
            _behind(blocks(number, lane, Window(float(old[3]), index.extent.end_ns), pixel_ns), old[3])
            for number, (lane, old) in enumerate(zip(index.lanes, before, strict=True))
            if old[3] < int(lane.reach[-1])
        ]
        if sum(map(len, parts)) <= TAIL_LIMIT or pixel_ns > window.length_ns:
            break
        pixel_ns *= 4
    return View(window, index.lanes, marked(joined(parts), None), sum(map(len, index.lanes)))


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


def _behind(shapes: Shapes, end_ns: int) -> Shapes:
    """Those shapes that end behind a moment."""
    kept = shapes.end_ns > end_ns
    return Shapes(**{name: getattr(shapes, name)[kept] for name in shapes.__dataclass_fields__})
