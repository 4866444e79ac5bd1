"""The timeline as shapes to draw: level of detail is made here, so a browser never holds more than a few thousand.

A *shape* is a span, or a *block*: neighbouring spans of a lane that lie closer than a pixel, drawn as one with the
share of time they cover. Which it is depends on the window that is asked for. Blocks of long windows are put together
from the items of a level (`ringtune.dashboard.data.timeline.levels`), so the answer costs the same however many spans
there are.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringtune.dashboard.data.live.lanes import GrowingLanes
from ringtune.dashboard.data.timeline.levels import Lane, LaneTable, build_lanes
from ringtune.dashboard.data.timeline.overview import dominant
from ringtune.dashboard.data.timeline.path import PathTable, path_of
from ringtune.dashboard.data.timeline.shapes import SHAPE_LIMIT, Mask, Shapes, Window, fitting, joined, marked, single
from ringtune.timeline.analysis.buckets import named as bucket_names_of
from ringtune.timeline.spans import COLUMN_TYPES, Instant, Ints, PartInfo, SpanTable, Trace
from ringtune.timeline.units import tensor_text
from ringtune.timeline.vocabulary import Stage

KEPT_INSTANTS = ("KNOBS", "STALL", "ERROR", "CLOCK")


def kept_instants(trace: Trace) -> tuple[Instant, ...]:
    """Return the instants that the timeline marks, and those that analyses of an index need."""
    return tuple(instant for instant in trace.instants if instant.name in KEPT_INSTANTS)


@dataclass(frozen=True)
class Query:
    """What to show.

    Attributes:
        window: The interval; None for all.
        ranks: Ranks to show; empty for all.
        search: Part of a tensor's or a span's name, upper and lower case alike; empty for none.
        margin: Share of the window that is answered beyond it on both sides.
        stages: Stages to show; empty for all.
        compact: One line a rank: in every piece of the window the phase that took most of it.
    """

    window: Window | None = None
    ranks: tuple[int, ...] = ()
    search: str = ""
    margin: float = 0.0
    stages: tuple[Stage, ...] = ()
    compact: bool = False

    def shows(self, lane: Lane) -> bool:
        """Whether a lane is among those to show."""
        return (not self.ranks or lane.rank in self.ranks) and (not self.stages or lane.stage in self.stages)


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
        compact: All lanes of a rank are one line.
    """

    window: Window
    lanes: tuple[Lane, ...]
    shapes: Shapes
    spans: int
    hits: int = 0
    searched: bool = False
    compact: bool = False


@dataclass(frozen=True)
class About:
    """What an index knows besides its numbers: texts of spans, instants, ranks, and what could not be read.

    ``parts``: what ranks say about themselves, where that is known.
    """

    names: tuple[str, ...]
    tensors: tuple[str, ...]
    instants: tuple[Instant, ...]
    ranks: tuple[int, ...]
    problems: tuple[str, ...] = ()
    facts: tuple[str, ...] = ("",)
    parts: tuple[PartInfo, ...] = ()


@dataclass
class TimelineIndex:
    """A trace, ready to answer queries. Immutable; answers may be asked for from several threads.

    ``spans`` holds the spans that are shown, lane by lane; where lanes grow, with room between that means nothing.
    Their tensors are named as people know them, DDP's buckets by number and parameters; ``tensors``: as recorded.
    """

    spans: SpanTable
    lanes: tuple[Lane, ...]
    instants: tuple[Instant, ...]
    ranks: tuple[int, ...]
    extent: Window
    problems: tuple[str, ...] = ()
    parts: tuple[PartInfo, ...] = ()
    tensors: tuple[str, ...] = ()
    _path: PathTable | None = None
    _searches: dict[str, Ints] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def build(trace: Trace, problems: tuple[str, ...] = ()) -> TimelineIndex:
        """Return the index of a trace whose times are the job's."""
        spans = trace.spans
        about = About(spans.names, spans.tensors, kept_instants(trace), trace.ranks, problems, spans.fact_texts)
        return TimelineIndex.of(build_lanes(trace.spans), about)

    @staticmethod
    def of(table: LaneTable | GrowingLanes, about: About, path: PathTable | None = None) -> TimelineIndex:
        """Return the index over lanes that are made already; a critical path that is missing is found when needed."""
        columns: dict[str, Any] = {name: table.spans[name] for name in COLUMN_TYPES}
        buckets = bucket_names_of(about.names)
        shown = tuple(tensor_text(text, buckets) for text in about.tensors)
        lanes = table.lanes()
        extent = Window(0.0, 1e6)
        if lanes:
            begin = min(float(lane.begin[0]) for lane in lanes)
            extent = Window(begin, max(begin + 1000, *(float(lane.reach[-1]) for lane in lanes)))
        return TimelineIndex(
            spans=SpanTable(**columns, names=about.names, tensors=shown, fact_texts=about.facts),
            lanes=lanes,
            instants=about.instants,
            ranks=about.ranks,
            extent=extent,
            problems=about.problems,
            parts=about.parts,
            tensors=about.tensors,
            _path=path,
        )

    def path(self) -> PathTable:
        """Return the critical path; the first call may take a while."""
        with self._lock:
            if self._path is None:
                self._path = path_of(Trace(self.recorded(), (), (), "merged", "job"))
            return self._path

    @property
    def known_path(self) -> PathTable | None:
        """The critical path if it was found already."""
        return self._path

    def recorded(self) -> SpanTable:
        """Return the spans alone, where there may be room between lanes."""
        if sum(map(len, self.lanes)) == len(self.spans):
            return self.spans
        return self.spans.take(np.concatenate([np.arange(lane.first, lane.first + len(lane)) for lane in self.lanes]))

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
        if query.compact:
            parts = [dominant(lanes, window.widened(query.margin / 4), limit)]
        elif _total(slices) <= limit:
            parts = [single(n, lane, part) for n, (lane, part) in enumerate(zip(lanes, slices, strict=True))]
        else:
            parts = fitting(lanes, (window.length_ns, wide), limit)
        shapes = marked(joined(parts), found)
        return View(window, lanes, shapes, spans, 0 if found is None else len(found), found is not None, query.compact)

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
                self._searches[needle] = _search(self, self.lanes, [0] * len(self.lanes), needle)
            return self._searches[needle]

    def found_behind(self, search: str, lanes: tuple[Lane, ...], ends_ns: Sequence[int]) -> Ints | None:
        """Return the places of what a search finds among spans that end behind moments, one for each lane."""
        needle = search.strip().lower()
        if not needle:
            return None
        starts = [int(np.searchsorted(lane.reach, end, "right")) for lane, end in zip(lanes, ends_ns, strict=True)]
        return _search(self, lanes, starts, needle)


def _slices(lanes: tuple[Lane, ...], window: Window) -> list[slice]:
    return [lane.touching(window.begin_ns, window.end_ns) for lane in lanes]


def _total(slices: list[slice]) -> int:
    return sum(part.stop - part.start for part in slices)


def _search(index: TimelineIndex, lanes: tuple[Lane, ...], starts: Sequence[int], needle: str) -> Ints:
    """Places of the spans found, lane by lane from a span on."""
    spans = index.spans
    texts = zip(spans.tensors, index.tensors, strict=True)
    wanted = np.array([needle in shown.lower() or needle in said.lower() for shown, said in texts], dtype=np.bool_)
    named = np.array([needle in text.lower() for text in spans.names], dtype=np.bool_)
    parts = [slice(lane.first + start, lane.first + len(lane)) for lane, start in zip(lanes, starts, strict=True)]
    hits = [_named(spans, part, wanted, named) for part in parts]
    moving = [lane.stage is Stage.COMMUNICATE for lane in lanes]
    batches = [spans.batch[part][hit] for part, hit, moves in zip(parts, hits, moving, strict=True) if not moves]
    carrying = np.sort(np.concatenate(batches)) if batches else np.empty(0, dtype=np.int64)
    carrying = carrying[np.searchsorted(carrying, 0, "right") :]
    for part, hit, moves in zip(parts, hits, moving, strict=True):
        if moves and len(carrying):
            batch = spans.batch[part]
            hit |= carrying[np.minimum(np.searchsorted(carrying, batch), len(carrying) - 1)] == batch
    found = [part.start + np.flatnonzero(hit) for part, hit in zip(parts, hits, strict=True)]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _named(spans: SpanTable, part: slice, wanted: Mask, named: Mask) -> Mask:
    """Which spans of a part have one of these tensors or names."""
    hit: Mask = wanted[spans.tensor[part]] if wanted.any() else np.zeros(part.stop - part.start, dtype=np.bool_)
    if named.any():
        hit = hit | named[spans.name[part]]
    return hit
