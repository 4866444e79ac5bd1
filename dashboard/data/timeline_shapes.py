"""Shapes to draw: spans, and blocks of spans that lie closer than a pixel, put together from the items of a level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.dashboard.data.timeline_levels import Lane, gaps, touching
from ringtune.timeline.spans import Ints

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SHAPE_LIMIT = 2400
PIXELS = 1000
FEW = 256
"""So many spans of a lane are joined as quickly as items of its levels, which a lane that grows may have to make."""
BLOCK_PIXELS = 24
"""Longest block of spans that do not overlap, in pixels: density stays visible along a busy lane."""


@dataclass(frozen=True)
class Window:
    """An interval of the job's time in nanoseconds."""

    begin_ns: float
    end_ns: float

    @property
    def length_ns(self) -> float:
        """How long it is."""
        return self.end_ns - self.begin_ns

    def widened(self, share: float) -> Window:
        """Return the window with a share of its length added on both sides."""
        return Window(self.begin_ns - share * self.length_ns, self.end_ns + share * self.length_ns)


@dataclass(frozen=True)
class Shapes:
    """Shapes of a view, column by column; ``span`` is -1 for a block.

    ``lane`` indexes `View.lanes`; ``share`` is the covered part of the shape (1 for a span); ``hit`` says whether the
    search found something in it; ``first`` is the place of its first span, behind which the others follow.
    """

    lane: Ints
    begin_ns: Ints
    end_ns: Ints
    count: Ints
    share: Floats
    span: Ints
    row: Ints
    hit: Mask
    first: Ints

    def __len__(self) -> int:
        return len(self.lane)


def single(number: int, lane: Lane, part: slice) -> Shapes:
    """Return every span of a part of a lane as a shape of its own."""
    begin = lane.begin[part]
    ones = np.ones(len(begin), dtype=np.int64)
    place = lane.first + np.arange(part.start, part.stop, dtype=np.int64)
    share, row = ones.astype(np.float64), lane.row[part].astype(np.int64)
    return Shapes(number * ones, begin, lane.end[part], ones, share, place, row, ones > 0, place)


def fitting(lanes: tuple[Lane, ...], spread: tuple[float, Window], limit: int) -> list[Shapes]:
    """Return blocks of as many lanes as there are, joined over as many pixels as it takes to be few enough.

    ``spread`` is the length of the window that fills the screen, and the wider one that is answered.
    """
    length_ns, wide = spread
    pixel_ns = max(1.0, length_ns / PIXELS)
    while True:
        parts = [blocks(number, lane, wide, pixel_ns) for number, lane in enumerate(lanes)]
        if sum(map(len, parts)) <= limit or pixel_ns > wide.length_ns:
            return parts
        pixel_ns *= 2


def blocks(number: int, lane: Lane, window: Window, pixel_ns: float) -> Shapes:
    """Return one lane's shapes: spans and items closer than a pixel are joined."""
    part = lane.touching(window.begin_ns, window.end_ns)
    level = lane.level(pixel_ns) if part.stop - part.start > FEW else None
    if level is None:
        begin, end = lane.begin[part], lane.end[part]
        first, count = lane.first + np.arange(part.start, part.stop), np.ones(len(begin), dtype=np.int64)
        inner: Ints = np.zeros(len(begin), dtype=np.int64)
    else:
        part = touching(level, window.begin_ns, window.end_ns)
        begin, end, inner = level.begin[part], level.end[part], level.gap[part]
        first, count = level.first[part], level.count[part].astype(np.int64)
    if not len(begin):
        return joined([])
    before = gaps(begin, np.maximum.accumulate(end))
    starts = _block_starts(begin, end, before, pixel_ns)
    before[starts] = 0
    counts = np.add.reduceat(count, starts)
    begins, ends = begin[starts], np.maximum.reduceat(end, starts)
    uncovered = np.add.reduceat(before + inner, starts)
    alone = counts == 1
    row = np.where(alone, lane.row[first[starts] - lane.first], -1).astype(np.int64)
    return Shapes(
        lane=np.full(len(starts), number, dtype=np.int64),
        begin_ns=begins,
        end_ns=ends,
        count=counts,
        share=np.where(alone, 1.0, 1 - uncovered / np.maximum(ends - begins, 1)),
        span=np.where(alone, first[starts], -1),
        row=row,
        hit=np.ones(len(starts), dtype=np.bool_),
        first=first[starts],
    )


def _block_starts(begin: Ints, end: Ints, before: Ints, pixel_ns: float) -> Ints:
    """Return where blocks start: behind a gap of a pixel, and every so often where nothing reaches across."""
    reach = np.maximum.accumulate(end)[:-1]
    apart = np.concatenate([np.ones(1, dtype=np.bool_), begin[1:] >= reach])
    bucket = (begin // (BLOCK_PIXELS * pixel_ns)).astype(np.int64)
    turned = np.diff(bucket, prepend=bucket[:1] - 1) != 0
    return np.flatnonzero((before > pixel_ns) | (turned & apart))


def marked(shapes: Shapes, found: Ints | None) -> Shapes:
    """Say which shapes hold something that a search found."""
    if found is None:
        return replace(shapes, hit=np.zeros(len(shapes), dtype=np.bool_))
    low, high = np.searchsorted(found, shapes.first), np.searchsorted(found, shapes.first + shapes.count)
    return replace(shapes, hit=high > low)


def joined(parts: list[Shapes]) -> Shapes:
    """Return the shapes of several lanes together."""
    columns = {}
    for name, kind in _SHAPE_TYPES.items():
        blank: NDArray[Any] = np.empty(0, dtype=kind)
        columns[name] = np.concatenate([blank, *(getattr(part, name) for part in parts)])
    return Shapes(**columns)


_SHAPE_TYPES = {
    "lane": np.int64, "begin_ns": np.int64, "end_ns": np.int64, "count": np.int64, "share": np.float64,
    "span": np.int64, "row": np.int64, "hit": np.bool_, "first": np.int64,
}  # fmt: skip
