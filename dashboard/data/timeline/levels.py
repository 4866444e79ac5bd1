"""The lanes of a timeline and their levels, computed once: spans by lane, and coarser and coarser levels of them.

A *lane* is one stage of one rank; of a thread or stream of a profile, the calls of one depth. Its spans lie side by
side, by begin. A *level* of a lane cuts the job's time into buckets of equal width and holds one *item* for the spans
that begin in the same bucket: where they begin and end, how many they are, and how much of that time none of them
covered. Widths grow by `WIDEN`, so all levels together are about half as large as the spans, and a window of any
length is answered from a few thousand items.

Everything is columns of numbers, in memory or as files that are mapped into it (`timeline_store`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.dashboard.theme import PHASES
from ringtune.timeline.spans import COLUMN_TYPES, Ints, Mask, SpanTable
from ringtune.timeline.vocabulary import OVERLAPPING_STAGES, STAGE_OF_LABEL, Stage

Columns = dict[str, NDArray[Any]]
Allocate = Callable[[str, Any, int], NDArray[Any]]
"""(name, type, length): a column to fill."""

STAGES = tuple(STAGE_OF_LABEL[label] for label in PHASES)
PLACE_OF_STAGE = np.full(256, len(STAGES), dtype=np.int64)
PLACE_OF_STAGE[[int(stage) for stage in STAGES]] = np.arange(len(STAGES))
ROW_LIMIT, STACK_LIMIT = 6, 24
"""Most rows of a lane of spans that overlap, and most lanes of a thread."""
COARSEST = 1024
"""Least buckets of the coarsest level: one for each pixel of a small screen; larger ones take the next finer level."""
WIDEN = 4
"""Widths are powers of it, so that buckets stay where they are when a job goes on."""
FEW = 256
"""Up to so many spans of a lane are joined as quickly as the items of its levels, which a growing lane has to make."""
_CROWDED = 2
"""A level is worth having where its buckets hold this many spans on average."""

LANE_TYPES: Mapping[str, Any] = {**COLUMN_TYPES, "reach": np.int64, "row": np.int8}
ITEM_TYPES: Mapping[str, Any] = {
    "begin": np.int64, "end": np.int64, "reach": np.int64, "gap": np.int64, "first": np.int64, "count": np.int32,
}  # fmt: skip


@dataclass(frozen=True)
class Level:
    """One level of a lane: items by begin. ``first`` is the place of an item's first span among all spans.

    ``reach[i]`` is the latest end among the first i + 1 items; ``gap`` the time within an item that no span covers.
    """

    width_ns: int
    begin: Ints
    end: Ints
    reach: Ints
    gap: Ints
    first: Ints
    count: NDArray[np.int32]


@dataclass(frozen=True)
class Lane:
    """One stage of one rank: its spans by begin, and columns by which those that touch a window are found quickly.

    Where ``thread`` has a name, it holds that thread's calls inside so many others as its ``depth`` says.

    ``first`` is the place of its first span among all spans; ``reach[i]`` the latest end among the first i + 1 spans;
    ``row`` the line of a span within the lane, below ``rows``, so that spans that overlap lie beside one another.
    """

    rank: int
    stage: Stage
    first: int
    begin: Ints
    end: Ints
    reach: Ints
    row: NDArray[np.int8]
    rows: int
    levels: Sequence[Level] = ()
    thread: str = ""
    depth: int = 0

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def places(self) -> slice:
        """Its spans among all spans."""
        return slice(self.first, self.first + len(self))

    def touching(self, begin_ns: float, end_ns: float) -> slice:
        """Return the spans that may touch a window; all that do are among them."""
        return touching(self, begin_ns, end_ns)

    def items(self, window: tuple[float, float], pixel_ns: float) -> tuple[Level | None, slice]:
        """Return what to draw of a window, from begin to end, and which rows of it.

        That is the coarsest level whose buckets are no wider than a pixel; None stands for the spans themselves, where
        these are few or there is no such level.
        """
        part = self.touching(*window)
        if part.stop - part.start <= FEW:
            return None, part
        fitting = [level for level in self.levels if level.width_ns <= pixel_ns]
        return (fitting[-1], touching(fitting[-1], *window)) if fitting else (None, part)


def touching(table: Lane | Level, begin_ns: float, end_ns: float) -> slice:
    """Return which rows of a lane or a level may touch a window."""
    # Whole numbers: for a float numpy makes floats of the whole column first, each time.
    begin, end = math.ceil(max(begin_ns, -MOST)), math.floor(min(end_ns, MOST))
    return slice(int(table.reach.searchsorted(begin, "left")), int(table.begin.searchsorted(end, "right")))


@dataclass
class LaneTable:
    """All lanes as columns: spans (`LANE_TYPES`), items (`ITEM_TYPES`), and where each lane and level begins."""

    spans: Columns
    items: Columns
    places: list[dict[str, Any]] = field(default_factory=list)

    def lanes(self) -> tuple[Lane, ...]:
        """Return the lanes; their columns are parts of the table's."""
        return tuple(self._lane(place) for place in self.places)

    def _lane(self, place: Mapping[str, Any]) -> Lane:
        part = slice(place["first"], place["first"] + place["count"])
        column = {name: self.spans[name][part] for name in ("begin_ns", "end_ns", "reach", "row")}
        levels = []
        for width, first, count in place["levels"]:
            inside = {name: self.items[name][first : first + count] for name in ITEM_TYPES}
            levels.append(Level(width_ns=width, **inside))
        return Lane(
            rank=place["rank"],
            stage=Stage(place["stage"]),
            first=place["first"],
            begin=column["begin_ns"],
            end=column["end_ns"],
            reach=column["reach"],
            row=column["row"],
            rows=place["rows"],
            levels=tuple(levels),
            thread=place["thread"],
            depth=place["depth"],
        )


def empty_column(_name: str, kind: Any, length: int) -> NDArray[Any]:
    """Return a column in memory."""
    return np.empty(length, dtype=kind)


def build_lanes(
    spans: SpanTable, allocate: Allocate = empty_column, on_progress: Callable[[float], None] = lambda share: None
) -> LaneTable:
    """Sort spans into lanes and make their levels; spans of stages that are not shown are left out.

    Args:
        spans: The job's spans, in any order.
        allocate: Makes the columns of the spans.
        on_progress: Receives the share of the work that is done.
    """
    chosen = [(rank, stage, call) for rank, stage, order in by_lane(spans) for call in by_thread(spans, order)]
    total = sum(len(order) for _, _, (_, _, order) in chosen)
    table = LaneTable({name: allocate(name, kind, total) for name, kind in LANE_TYPES.items()}, {})
    length = int(spans.end_ns.max() - spans.begin_ns.min()) if len(spans) else 0
    first, pieces = 0, list[Columns]()
    for rank, stage, (thread, depth, order) in chosen:
        part = slice(first, first + len(order))
        for name in COLUMN_TYPES:
            table.spans[name][part] = getattr(spans, name)[order]
        begin, end = table.spans["begin_ns"][part], table.spans["end_ns"][part]
        reach = np.maximum.accumulate(end)
        table.spans["reach"][part] = reach
        row = rows_of(begin, end) if stage in OVERLAPPING_STAGES else np.zeros(len(order), dtype=np.int8)
        table.spans["row"][part] = row
        levels = []
        for width, items in _levels((begin, end, reach), first, length):
            levels.append([width, sum(len(piece["begin"]) for piece in pieces), len(items["begin"])])
            pieces.append(items)
        place = {"rank": rank, "stage": int(stage), "thread": thread, "depth": depth, "first": first}
        table.places.append({**place, "count": len(order), "rows": int(row.max()) + 1, "levels": levels})
        first += len(order)
        on_progress(first / total)
    blank = {name: np.empty(0, dtype=kind) for name, kind in ITEM_TYPES.items()}
    table.items = {name: np.concatenate([blank[name], *(piece[name] for piece in pieces)]) for name in ITEM_TYPES}
    return table


def by_lane(spans: SpanTable) -> list[tuple[int, Stage, Ints]]:
    """Rank, stage and the places of the spans, by begin, of every lane that is not empty, top to bottom."""
    order, lane = in_lanes(spans, PLACE_OF_STAGE[spans.stage] < len(STAGES))
    cuts = [0, *(1 + np.flatnonzero(lane[1:] != lane[:-1])).tolist(), len(order)]
    found = []
    for first, end in pairwise(cuts):
        if first < end:
            rank, stage = divmod(int(lane[first]), len(STAGES))
            found.append((rank, STAGES[stage], order[first:end]))
    return found


def by_thread(spans: SpanTable, order: Ints) -> list[tuple[str, int, Ints]]:
    """Thread, depth and the places of the spans, by begin, of every lane that spans of one stage and rank make."""
    numbers, names = spans.threads
    if len(names) == 1:
        return [("", 0, order)]
    thread, found = numbers[spans.facts[order]], list[tuple[str, int, Ints]]()
    for number in np.unique(thread).tolist():
        mine = order[thread == number]
        if not number:
            found.append(("", 0, mine))
            continue
        mine = mine[np.lexsort((-spans.end_ns[mine], spans.begin_ns[mine]))]  # a call before those that begin with it
        row = rows_of(spans.begin_ns[mine], spans.end_ns[mine], [NEVER] * STACK_LIMIT)
        found += [(names[number], depth, mine[row == depth]) for depth in range(int(row.max()) + 1)]
    return found


def in_lanes(spans: SpanTable, shown: Mask) -> tuple[Ints, Ints]:
    """Return the places of the spans that are shown, lane by lane and by begin, and the number of the lane of each."""
    chosen = np.flatnonzero(shown)
    lane = spans.rank[chosen] * np.int64(len(STAGES)) + PLACE_OF_STAGE[spans.stage[chosen]]
    order = np.lexsort((spans.begin_ns[chosen], lane))
    return chosen[order], lane[order]


NEVER = -(2**63)
MOST = 2**62
"""More nanoseconds than any job takes."""


def rows_of(begin: Ints, end: Ints, taken: Sequence[int] = ()) -> NDArray[np.int8]:
    """Return for each span the first row that is free when it begins; the row freed first when none is.

    ``taken``: when each row is freed of spans before these.
    """
    free = list(taken) or [NEVER] * ROW_LIMIT
    rows = bytearray(len(begin))
    for number, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        for row in range(len(free)):
            if free[row] <= first:
                break
        else:
            row = free.index(min(free))
        if free[row] < last:
            free[row] = last
        rows[number] = row
    return np.frombuffer(rows, dtype=np.int8)


def level_widths(count: int, length_ns: int) -> list[int]:
    """Return the widths of the levels of a lane of so many spans in a job of that length, fine to coarse."""
    width = 1
    while width * WIDEN <= length_ns // COARSEST:
        width *= WIDEN
    if count < _CROWDED * min(COARSEST, max(1, length_ns // width)):
        return []
    widths = [width]
    while width > WIDEN and count * width // WIDEN > _CROWDED * length_ns:
        width //= WIDEN
        widths.insert(0, width)
    return widths


def items_of(moments: tuple[Ints, Ints, Ints], first: int) -> Columns:
    """Return spans, given as begin, end and reach, as items of one span each; ``first`` is the place of the first."""
    begin, end, reach = moments
    return {
        "begin": begin, "end": end, "reach": reach, "gap": np.zeros(len(begin), dtype=np.int64),
        "first": np.arange(first, first + len(begin), dtype=np.int64), "count": np.ones(len(begin), dtype=np.int32),
    }  # fmt: skip


def _levels(moments: tuple[Ints, Ints, Ints], first: int, length_ns: int) -> list[tuple[int, Columns]]:
    """Make a lane's levels, fine to coarse, each from the one before."""
    items, found = items_of(moments, first), []
    for width in level_widths(len(moments[0]), length_ns):
        items = coarser(items, width)
        found.append((width, items))
    return found


def coarser(items: Columns, width: int) -> Columns:
    """Join the items that begin in the same bucket."""
    begin, end = items["begin"], items["end"]
    starts = np.flatnonzero(np.diff(begin // width, prepend=begin[:1] // width - 1))
    before = gaps(begin, items["reach"])
    before[starts] = 0
    return {
        "begin": begin[starts],
        "end": np.maximum.reduceat(end, starts),
        "reach": items["reach"][np.append(starts[1:], len(begin)) - 1],
        "gap": np.add.reduceat(before + items["gap"], starts),
        "first": items["first"][starts],
        "count": np.add.reduceat(items["count"], starts, dtype=np.int32),
    }


def gaps(begin: Ints, reach: Ints) -> Ints:
    """Return before each row the time that none of the rows before it covers; 0 before the first."""
    found = np.zeros(len(begin), dtype=np.int64)
    found[1:] = np.maximum(begin[1:] - reach[:-1], 0)
    return found
