"""The timeline as shapes to draw: level of detail is made here, so a browser never holds more than a few thousand.

A *lane* is one stage of one rank. A *shape* is a span, or a *block*: neighbouring spans of a lane that lie closer
than a pixel, drawn as one with the share of time they cover. Which it is depends on the window that is asked for.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.dashboard.theme import PHASES
from ringtune.timeline.spans import Instant, SpanTable, Trace
from ringtune.timeline.vocabulary import OVERLAPPING_STAGES, STAGE_OF_LABEL, Stage

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SHAPE_LIMIT = 2400
PIXELS = 1000
ROW_LIMIT = 6
BLOCK_PIXELS = 24
"""Longest block of spans that do not overlap, in pixels: density stays visible along a busy lane."""

_ROWS_SPAN_LIMIT = 200_000
_STAGES = tuple(STAGE_OF_LABEL[label] for label in PHASES)
SHOWN_INSTANTS = ("KNOBS", "STALL", "ERROR")


@dataclass(frozen=True)
class Lane:
    """One stage of one rank: indices of its spans by begin, and what finds those that touch a window quickly.

    ``reach[i]`` is the latest end among the first i + 1 spans; ``row`` the line of a span within the lane, below
    ``rows``, so that spans that overlap lie beside one another.
    """

    rank: int
    stage: Stage
    order: Ints
    begin: Ints
    end: Ints
    reach: Ints
    row: NDArray[np.int8]
    rows: int

    def touching(self, begin_ns: float, end_ns: float) -> slice:
        """Return the spans that may touch a window; all that do are among them."""
        return slice(
            int(np.searchsorted(self.reach, begin_ns, "left")), int(np.searchsorted(self.begin, end_ns, "right"))
        )


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
    """

    window: Window | None = None
    ranks: tuple[int, ...] = ()
    search: str = ""
    margin: float = 0.0


@dataclass(frozen=True)
class Shapes:
    """Shapes of a view, column by column; ``span`` is -1 for a block.

    ``lane`` indexes `View.lanes`; ``share`` is the covered part of the shape (1 for a span); ``hit`` says whether the
    search found something in it.
    """

    lane: Ints
    begin_ns: Ints
    end_ns: Ints
    count: Ints
    share: Floats
    span: Ints
    row: Ints
    hit: Mask

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


@dataclass
class TimelineIndex:
    """A trace, ready to answer queries. Immutable after `build`; answers may be asked for from several threads."""

    spans: SpanTable
    lanes: tuple[Lane, ...]
    instants: tuple[Instant, ...]
    ranks: tuple[int, ...]
    extent: Window
    problems: tuple[str, ...] = ()
    _searches: dict[str, Mask] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def build(trace: Trace, problems: tuple[str, ...] = ()) -> TimelineIndex:
        """Return the index of a trace whose times are the job's."""
        spans = trace.spans
        lanes = [_lane(spans, rank, stage) for rank in trace.ranks for stage in _STAGES]
        extent = Window(0.0, 1e6)
        if len(spans):
            extent = Window(float(spans.begin_ns.min()), float(max(spans.end_ns.max(), spans.begin_ns.min() + 1000)))
        return TimelineIndex(
            spans=spans,
            lanes=tuple(lane for lane in lanes if len(lane.order)),
            instants=tuple(instant for instant in trace.instants if instant.name in SHOWN_INSTANTS),
            ranks=trace.ranks,
            extent=extent,
            problems=problems,
        )

    def view(self, query: Query, limit: int = SHAPE_LIMIT) -> View:
        """Return the shapes of a query, at most about ``limit`` of them."""
        window = self.clamped(query.window)
        lanes = tuple(lane for lane in self.lanes if not query.ranks or lane.rank in query.ranks)
        found = self._found(query.search)
        spans = _total(_slices(lanes, window))
        wide, slices = window, _slices(lanes, window)
        for margin in (query.margin, query.margin / 4):
            wide, slices = window.widened(margin), _slices(lanes, window.widened(margin))
            # Single spans are worth more than a wide margin.
            if _total(slices) <= limit or spans > limit:
                break
        pixel_ns = 0.0 if _total(slices) <= limit else window.length_ns / PIXELS
        while True:
            parts = [
                _shapes(n, lane, part, (pixel_ns, found))
                for n, (lane, part) in enumerate(zip(lanes, slices, strict=True))
            ]
            if pixel_ns == 0.0 or sum(map(len, parts)) <= limit or pixel_ns > wide.length_ns:
                break
            pixel_ns *= 2
        hits = int(found.sum()) if found is not None else 0
        return View(window, lanes, _joined(parts), spans, hits, found is not None)

    def clamped(self, window: Window | None) -> Window:
        """Return a window that makes sense: the whole trace for None or an empty one."""
        if window is None or not window.length_ns > 0:
            margin = 0.01 * self.extent.length_ns
            return Window(self.extent.begin_ns - margin, self.extent.end_ns + margin)
        return window

    def step_range(self) -> tuple[int, int] | None:
        """Return the first and last step recorded; None without steps."""
        steps = self.spans.step[self.spans.stage == Stage.STEP]
        return (int(steps.min()), int(steps.max())) if len(steps) else None

    def step_window(self, first: int, last: int | None = None) -> Window | None:
        """Return the interval of steps ``first`` to ``last`` over all ranks, a little widened; None if not recorded."""
        last = first if last is None else last
        chosen = (self.spans.stage == Stage.STEP) & (self.spans.step >= first) & (self.spans.step <= last)
        if not chosen.any():
            return None
        return Window(float(self.spans.begin_ns[chosen].min()), float(self.spans.end_ns[chosen].max())).widened(0.03)

    def next_hit(self, search: str, after_ns: float) -> Window | None:
        """Return a window around the next span the search finds (the first one after the last); None without any."""
        found = self._found(search)
        if found is None or not found.any():
            return None
        hits = np.flatnonzero(found)
        begins = self.spans.begin_ns[hits]
        later = begins > after_ns
        begin = int(begins[later].min() if later.any() else begins.min())
        end = int(self.spans.end_ns[hits[begins == begin]].max())
        return Window(float(begin), float(max(end, begin + 1000))).widened(2.0)

    def _found(self, search: str) -> Mask | None:
        """Return which spans a search finds: by tensor or name, and the batches that carried those tensors."""
        needle = search.strip().lower()
        if not needle:
            return None
        with self._lock:
            if needle not in self._searches:
                if len(self._searches) > 16:
                    self._searches.clear()
                self._searches[needle] = _search(self.spans, needle)
            return self._searches[needle]


def _slices(lanes: tuple[Lane, ...], window: Window) -> list[slice]:
    return [lane.touching(window.begin_ns, window.end_ns) for lane in lanes]


def _total(slices: list[slice]) -> int:
    return sum(part.stop - part.start for part in slices)


def _search(spans: SpanTable, needle: str) -> Mask:
    tensors = np.array([needle in text.lower() for text in spans.tensors], dtype=np.bool_)
    names = np.array([needle in text.lower() for text in spans.names], dtype=np.bool_)
    found = tensors[spans.tensor] if len(tensors) else np.zeros(len(spans), dtype=np.bool_)
    batches = np.unique(spans.batch[found & (spans.batch > 0)])
    carried = (spans.stage == Stage.COMMUNICATE) & np.isin(spans.batch, batches)
    named = names[spans.name] if len(names) else np.zeros(len(spans), dtype=np.bool_)
    hit: Mask = found | carried | named
    return hit


def _lane(spans: SpanTable, rank: int, stage: Stage) -> Lane:
    chosen = np.flatnonzero((spans.rank == rank) & (spans.stage == stage))
    order = chosen[np.argsort(spans.begin_ns[chosen], kind="stable")]
    begin, end = spans.begin_ns[order], spans.end_ns[order]
    row = _rows(begin, end) if stage in OVERLAPPING_STAGES else np.zeros(len(order), dtype=np.int8)
    reach = np.maximum.accumulate(end) if len(end) else end
    return Lane(rank, stage, order, begin, end, reach, row, int(row.max()) + 1 if len(row) else 1)


def _rows(begin: Ints, end: Ints) -> NDArray[np.int8]:
    """Return for each span the first row that is free when it begins; the row freed first when none is."""
    if len(begin) > _ROWS_SPAN_LIMIT:
        return np.zeros(len(begin), dtype=np.int8)
    free = [-(2**63)] * ROW_LIMIT
    rows = []
    for first, last in zip(begin.tolist(), end.tolist(), strict=True):
        row = next((n for n, at in enumerate(free) if at <= first), None)
        row = free.index(min(free)) if row is None else row
        free[row] = max(free[row], last)
        rows.append(row)
    return np.array(rows, dtype=np.int8)


def _shapes(number: int, lane: Lane, part: slice, detail: tuple[float, Mask | None]) -> Shapes:
    """Return the shapes of one lane; ``detail`` is the length of a pixel (0: every span) and what a search found."""
    pixel_ns, found = detail
    begin, end, order = lane.begin[part], lane.end[part], lane.order[part]
    hit = found[order] if found is not None else np.zeros(len(order), dtype=np.bool_)
    lanes = np.full(len(order), number, dtype=np.int64)
    if pixel_ns == 0.0 or not len(order):
        ones = np.ones(len(order), dtype=np.int64)
        return Shapes(lanes, begin, end, ones, ones.astype(np.float64), order, lane.row[part].astype(np.int64), hit)
    starts, gap = _block_starts(begin, end, pixel_ns)
    count = np.diff(np.append(starts, len(begin)))
    first, last = begin[starts], np.maximum.reduceat(end, starts)
    inner = gap.copy()
    inner[starts] = 0
    length = np.maximum(last - first, 1)
    share = np.where(count > 1, 1 - np.add.reduceat(inner, starts) / length, 1.0)
    return Shapes(
        lane=lanes[starts],
        begin_ns=first,
        end_ns=last,
        count=count,
        share=share,
        span=np.where(count == 1, order[starts], -1),
        row=np.where(count == 1, lane.row[part][starts], -1).astype(np.int64),
        hit=np.logical_or.reduceat(hit, starts),
    )


def _block_starts(begin: Ints, end: Ints, pixel_ns: float) -> tuple[Ints, Ints]:
    """Return where blocks start, and before each span the time that no span of the lane covered."""
    before = np.maximum.accumulate(end)[:-1]
    gap = np.concatenate([np.zeros(1, dtype=np.int64), np.maximum(begin[1:] - before, 0)])
    apart = np.concatenate([np.ones(1, dtype=np.bool_), begin[1:] >= before])
    bucket = (begin // (BLOCK_PIXELS * pixel_ns)).astype(np.int64)
    turned = np.diff(bucket, prepend=bucket[:1] - 1) != 0
    return np.flatnonzero((gap > pixel_ns) | (turned & apart)), gap


def _joined(parts: list[Shapes]) -> Shapes:
    names = ("lane", "begin_ns", "end_ns", "count", "share", "span", "row", "hit")
    empty = {"share": np.float64, "hit": np.bool_}
    columns = {}
    for name in names:
        blank: NDArray[Any] = np.empty(0, dtype=empty.get(name, np.int64))
        columns[name] = np.concatenate([blank, *(getattr(part, name) for part in parts)])
    return Shapes(**columns)
