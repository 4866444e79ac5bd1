"""Shapes to draw: spans, and blocks of spans that lie closer than a pixel, put together from the items of a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.dashboard.data.timeline.levels import Lane, gaps
from ringtune.timeline.spans import Ints

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SHAPE_LIMIT = 2400
PIXELS = 1000
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
    return _blocked(_items(number, lane, window, pixel_ns), pixel_ns)


def blocks_behind(lanes: Sequence[Lane], ends_ns: Sequence[int], until_ns: float, pixel_ns: float) -> Shapes:
    """Return what `blocks` makes of each lane from a moment of its own on, but for shapes that end before it.

    Args:
        lanes: The lanes, to which the shapes' numbers refer.
        ends_ns: Of each lane, behind which moment.
        until_ns: Up to which moment.
        pixel_ns: See `blocks`.
    """
    # All at once: of a lane there is little here, and a poll of a page has many lanes.
    parts = [
        _items(number, lane, Window(float(end), until_ns), pixel_ns)
        for number, (lane, end) in enumerate(zip(lanes, ends_ns, strict=True))
        if end < int(lane.reach[-1])
    ]
    if not parts:
        return joined([])
    items = _Items(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _ITEM_FIELDS})
    shapes = _blocked(items, pixel_ns)
    kept = shapes.end_ns > np.array(ends_ns)[shapes.lane]
    return Shapes(**{name: getattr(shapes, name)[kept] for name in _SHAPE_TYPES})


@dataclass(frozen=True)
class _Items:
    """What is joined to shapes, lane by lane: spans, or items of a level."""

    lane: Ints
    begin: Ints
    end: Ints
    reach: Ints
    gap: Ints
    first: Ints
    count: Ints
    row: Ints


_ITEM_FIELDS = tuple(_Items.__dataclass_fields__)


def _items(number: int, lane: Lane, window: Window, pixel_ns: float) -> _Items:
    """Return the items of a lane in a window, of the coarsest level that fits a pixel."""
    level, part = lane.items((window.begin_ns, window.end_ns), pixel_ns)
    if level is None:
        size = max(0, part.stop - part.start)
        ones: Ints = np.ones(size, dtype=np.int64)
        place = np.arange(lane.first + part.start, lane.first + part.start + size)
        columns = (lane.begin[part], lane.end[part], lane.reach[part])
        return _Items(number * ones, *columns, 0 * ones, place, ones, lane.row[part].astype(np.int64))
    first, count = level.first[part], level.count[part].astype(np.int64)
    row = lane.row[first - lane.first].astype(np.int64)
    columns = (level.begin[part], level.end[part], level.reach[part])
    return _Items(np.full(len(first), number), *columns, level.gap[part], first, count, row)


def _blocked(items: _Items, pixel_ns: float) -> Shapes:
    """Join what is closer than a pixel, lane by lane."""
    begin, reach = items.begin, items.reach
    if not len(begin):
        return joined([])
    before = gaps(begin, reach)
    starts = _block_starts(items, before, pixel_ns)
    before[starts] = 0
    counts = np.add.reduceat(items.count, starts)
    begins, ends = begin[starts], np.maximum.reduceat(items.end, starts)
    uncovered = np.add.reduceat(before + items.gap, starts)
    alone, first = counts == 1, items.first[starts]
    return Shapes(
        lane=items.lane[starts],
        begin_ns=begins,
        end_ns=ends,
        count=counts,
        share=np.where(alone, 1.0, 1 - uncovered / np.maximum(ends - begins, 1)),
        span=np.where(alone, first, -1),
        row=np.where(alone, items.row[starts], -1),
        hit=np.ones(len(starts), dtype=np.bool_),
        first=first,
    )


def _block_starts(items: _Items, before: Ints, pixel_ns: float) -> Ints:
    """Return where blocks start: with a lane, behind a pixel's gap, and where nothing reaches across.

    There they start now and then, and around whatever is as long as a block may be, which has room for its name.
    """
    begin, fresh = items.begin, np.diff(items.lane, prepend=-1) != 0
    apart = fresh.copy()
    apart[1:] |= begin[1:] >= items.reach[:-1]
    bucket = (begin // (BLOCK_PIXELS * pixel_ns)).astype(np.int64)
    turned = np.diff(bucket, prepend=bucket[:1] - 1) != 0
    long = items.end - begin > BLOCK_PIXELS * pixel_ns
    turned |= long
    turned[1:] |= long[:-1]
    return np.flatnonzero(fresh | (before > pixel_ns) | (turned & apart))


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
