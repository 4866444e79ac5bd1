"""The timeline as shapes to draw: level of detail is made here, so a browser never holds more than a few thousand.

A *shape* is a span, or a *block*: neighbouring spans of a lane that lie closer than a pixel, drawn as one with the
share of time they cover. Which it is depends on the window that is asked for. Blocks of long windows are put together
from the items of a level (`ringtune.dashboard.data.timeline_levels`), so the answer costs the same however many spans
there are.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.dashboard.data.timeline_levels import Lane, LaneTable, build_lanes, gaps, touching
from ringtune.dashboard.data.timeline_path import PathTable, path_of
from ringtune.timeline.spans import COLUMN_TYPES, Instant, Ints, SpanTable, Trace
from ringtune.timeline.vocabulary import Stage

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SHAPE_LIMIT = 2400
PIXELS = 1000
BLOCK_PIXELS = 24
"""Longest block of spans that do not overlap, in pixels: density stays visible along a busy lane."""

SHOWN_INSTANTS = ("KNOBS", "STALL", "ERROR")


def shown_instants(trace: Trace) -> tuple[Instant, ...]:
    """Return the instants that the timeline marks."""
    return tuple(instant for instant in trace.instants if instant.name in SHOWN_INSTANTS)


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
class Query:
    """What to show.

    Attributes:
        window: The interval; None for all.
        ranks: Ranks to show; empty for all.
        search: Part of a tensor's or a span's name, upper and lower case alike; empty for none.
        margin: Share of the window that is answered beyond it on both sides.
        stages: Stages to show; empty for all.
    """

    window: Window | None = None
    ranks: tuple[int, ...] = ()
    search: str = ""
    margin: float = 0.0
    stages: tuple[Stage, ...] = ()

    def shows(self, lane: Lane) -> bool:
        """Whether a lane is among those to show."""
        return (not self.ranks or lane.rank in self.ranks) and (not self.stages or lane.stage in self.stages)


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


@dataclass(frozen=True)
class View:
    """The answer to a query.

    Attributes:
        window: The interval that was asked for.
        lanes: Lanes shown, top to bottom: by rank, then by phase.
        shapes: What to draw.
        spans: Number of spans in the window.
        hits: Number of spans that the search found, in the whole trace.
        searched: Whether there was a search.
    """

    window: Window
    lanes: tuple[Lane, ...]
    shapes: Shapes
    spans: int
    hits: int = 0
    searched: bool = False


@dataclass(frozen=True)
class About:
    """What an index knows besides its numbers: texts of spans, instants, ranks, and what could not be read."""

    names: tuple[str, ...]
    tensors: tuple[str, ...]
    instants: tuple[Instant, ...]
    ranks: tuple[int, ...]
    problems: tuple[str, ...] = ()


@dataclass
class TimelineIndex:
    """A trace, ready to answer queries. Immutable; answers may be asked for from several threads.

    ``spans`` holds the spans that are shown, lane by lane.
    """

    spans: SpanTable
    lanes: tuple[Lane, ...]
    instants: tuple[Instant, ...]
    ranks: tuple[int, ...]
    extent: Window
    problems: tuple[str, ...] = ()
    _path: PathTable | None = None
    _searches: dict[str, Ints] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def build(trace: Trace, problems: tuple[str, ...] = ()) -> TimelineIndex:
        """Return the index of a trace whose times are the job's."""
        about = About(trace.spans.names, trace.spans.tensors, shown_instants(trace), trace.ranks, problems)
        return TimelineIndex.of(build_lanes(trace.spans), about)

    @staticmethod
    def of(table: LaneTable, about: About, path: PathTable | None = None) -> TimelineIndex:
        """Return the index over lanes that are made already; a critical path that is missing is found when needed."""
        columns: dict[str, Any] = {name: table.spans[name] for name in COLUMN_TYPES}
        lanes = table.lanes()
        extent = Window(0.0, 1e6)
        if lanes:
            begin = min(float(lane.begin[0]) for lane in lanes)
            extent = Window(begin, max(begin + 1000, *(float(lane.reach[-1]) for lane in lanes)))
        return TimelineIndex(
            spans=SpanTable(**columns, names=about.names, tensors=about.tensors),
            lanes=lanes,
            instants=about.instants,
            ranks=about.ranks,
            extent=extent,
            problems=about.problems,
            _path=path,
        )

    def path(self) -> PathTable:
        """Return the critical path; the first call may take a while."""
        with self._lock:
            if self._path is None:
                self._path = path_of(Trace(self.spans, (), (), "merged", "job"))
            return self._path

    def view(self, query: Query, limit: int = SHAPE_LIMIT) -> View:
        """Return the shapes of a query, at most about ``limit`` of them."""
        window = self.clamped(query.window)
        lanes = tuple(lane for lane in self.lanes if query.shows(lane))
        found = self._found(query.search)
        spans = _total(_slices(lanes, window))
        wide, slices = window, _slices(lanes, window)
        for margin in (query.margin, query.margin / 4):
            wide = window.widened(margin)
            slices = _slices(lanes, wide)
            # Single spans are worth more than a wide margin.
            if _total(slices) <= limit or spans > limit:
                break
        if _total(slices) <= limit:
            parts = [_single(n, lane, part) for n, (lane, part) in enumerate(zip(lanes, slices, strict=True))]
        else:
            parts = _fitting(lanes, (window.length_ns, wide), limit)
        shapes = _marked(_joined(parts), found)
        return View(window, lanes, shapes, spans, 0 if found is None else len(found), found is not None)

    def clamped(self, window: Window | None) -> Window:
        """Return a window that makes sense: the whole trace for None or an empty one."""
        if window is None or not window.length_ns > 0:
            margin = 0.01 * self.extent.length_ns
            return Window(self.extent.begin_ns - margin, self.extent.end_ns + margin)
        return window

    def step_range(self) -> tuple[int, int] | None:
        """Return the first and last step recorded; None without steps."""
        steps = [self.spans.step[lane.places] for lane in self.lanes if lane.stage == Stage.STEP]
        return (min(int(own.min()) for own in steps), max(int(own.max()) for own in steps)) if steps else None

    def step_window(self, first: int, last: int | None = None) -> Window | None:
        """Return the interval of steps ``first`` to ``last`` over all ranks, a little widened; None if not recorded."""
        last = first if last is None else last
        begins, ends = list[int](), list[int]()
        for lane in self.lanes:
            if lane.stage == Stage.STEP:
                step = self.spans.step[lane.places]
                chosen = (step >= first) & (step <= last)
                if chosen.any():
                    begins.append(int(lane.begin[chosen].min()))
                    ends.append(int(lane.end[chosen].max()))
        return Window(float(min(begins)), float(max(ends))).widened(0.03) if begins else None

    def next_hit(self, search: str, after_ns: float) -> Window | None:
        """Return a window around the next span the search finds (the first one after the last); None without any."""
        found = self._found(search)
        if found is None or not len(found):
            return None
        begins = self.spans.begin_ns[found]
        later = begins > after_ns
        begin = int(begins[later].min() if later.any() else begins.min())
        end = int(self.spans.end_ns[found[begins == begin]].max())
        return Window(float(begin), float(max(end, begin + 1000))).widened(2.0)

    def _found(self, search: str) -> Ints | None:
        """Return the places of the spans a search finds: by tensor or name, and the batches that carried them."""
        needle = search.strip().lower()
        if not needle:
            return None
        with self._lock:
            if needle not in self._searches:
                if len(self._searches) > 16:
                    self._searches.clear()
                self._searches[needle] = _search(self.spans, self.lanes, needle)
            return self._searches[needle]


def _slices(lanes: tuple[Lane, ...], window: Window) -> list[slice]:
    return [lane.touching(window.begin_ns, window.end_ns) for lane in lanes]


def _total(slices: list[slice]) -> int:
    return sum(part.stop - part.start for part in slices)


def _search(spans: SpanTable, lanes: tuple[Lane, ...], needle: str) -> Ints:
    wanted = np.array([needle in text.lower() for text in spans.tensors], dtype=np.bool_)
    named = np.array([needle in text.lower() for text in spans.names], dtype=np.bool_)
    found = {lane.first: _named(spans, lane, wanted, named) for lane in lanes}
    batches = [spans.batch[lane.first + found[lane.first]] for lane in lanes if lane.stage != Stage.COMMUNICATE]
    carrying = np.unique(np.concatenate(batches)) if batches else np.empty(0, dtype=np.int64)
    carrying = carrying[carrying > 0]
    for lane in lanes:
        if lane.stage == Stage.COMMUNICATE and len(carrying):
            carried = np.flatnonzero(np.isin(spans.batch[lane.places], carrying))
            found[lane.first] = np.union1d(found[lane.first], carried)
    places: list[Ints] = [lane.first + found[lane.first] for lane in lanes]
    return np.concatenate(places) if places else np.empty(0, dtype=np.int64)


def _named(spans: SpanTable, lane: Lane, wanted: Mask, named: Mask) -> Ints:
    """Places within a lane of the spans with one of these tensors or names."""
    hit = wanted[spans.tensor[lane.places]] if wanted.any() else np.zeros(len(lane), dtype=np.bool_)
    if named.any():
        hit = hit | named[spans.name[lane.places]]
    return np.flatnonzero(hit)


def _single(number: int, lane: Lane, part: slice) -> Shapes:
    """Return every span of a part of a lane as a shape of its own."""
    begin = lane.begin[part]
    ones = np.ones(len(begin), dtype=np.int64)
    place = lane.first + np.arange(part.start, part.stop, dtype=np.int64)
    share, row = ones.astype(np.float64), lane.row[part].astype(np.int64)
    return Shapes(number * ones, begin, lane.end[part], ones, share, place, row, ones > 0, place)


def _fitting(lanes: tuple[Lane, ...], spread: tuple[float, Window], limit: int) -> list[Shapes]:
    """Return blocks of as many lanes as there are, joined over as many pixels as it takes to be few enough.

    ``spread`` is the length of the window that fills the screen, and the wider one that is answered.
    """
    length_ns, wide = spread
    pixel_ns = max(1.0, length_ns / PIXELS)
    while True:
        parts = [_blocks(number, lane, wide, pixel_ns) for number, lane in enumerate(lanes)]
        if sum(map(len, parts)) <= limit or pixel_ns > wide.length_ns:
            return parts
        pixel_ns *= 2


def _blocks(number: int, lane: Lane, window: Window, pixel_ns: float) -> Shapes:
    """Return one lane's shapes: spans and items closer than a pixel are joined."""
    level = lane.level(pixel_ns)
    if level is None:
        part = lane.touching(window.begin_ns, window.end_ns)
        begin, end = lane.begin[part], lane.end[part]
        first, count = lane.first + np.arange(part.start, part.stop), np.ones(len(begin), dtype=np.int64)
        inner: Ints = np.zeros(len(begin), dtype=np.int64)
    else:
        part = touching(level, window.begin_ns, window.end_ns)
        begin, end, inner = level.begin[part], level.end[part], level.gap[part]
        first, count = level.first[part], level.count[part].astype(np.int64)
    if not len(begin):
        return _joined([])
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


def _marked(shapes: Shapes, found: Ints | None) -> Shapes:
    """Say which shapes hold something that a search found."""
    if found is None:
        return replace(shapes, hit=np.zeros(len(shapes), dtype=np.bool_))
    low, high = np.searchsorted(found, shapes.first), np.searchsorted(found, shapes.first + shapes.count)
    return replace(shapes, hit=high > low)


def _joined(parts: list[Shapes]) -> Shapes:
    columns = {}
    for name, kind in _SHAPE_TYPES.items():
        blank: NDArray[Any] = np.empty(0, dtype=kind)
        columns[name] = np.concatenate([blank, *(getattr(part, name) for part in parts)])
    return Shapes(**columns)


_SHAPE_TYPES = {
    "lane": np.int64, "begin_ns": np.int64, "end_ns": np.int64, "count": np.int64, "share": np.float64,
    "span": np.int64, "row": np.int64, "hit": np.bool_, "first": np.int64,
}  # fmt: skip
