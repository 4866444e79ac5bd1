"""Lanes that grow: new spans go to the ends of their lanes, and only the last existing rows change.

The columns are those of `levels.LaneTable`, but each lane has spare room at its end, whose contents mean
nothing. Where a lane is full, all move into columns twice as large, so a span is moved once or twice.
The result equals, lane by lane, that of `levels.build_lanes` over all spans at once; a lane may have more
levels than it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ringtune.dashboard.data.live.columns import GrowingColumn
from ringtune.dashboard.data.timeline.levels import (
    ITEM_TYPES,
    LANE_TYPES,
    NEVER,
    ROW_LIMIT,
    STAGES,
    Columns,
    Lane,
    Level,
    by_lane,
    coarser,
    items_of,
    level_widths,
    rows_of,
)
from ringtune.timeline.spans import COLUMN_TYPES, SpanTable
from ringtune.timeline.vocabulary import OVERLAPPING_STAGES, Stage

_LEAST_ROOM = 256


@dataclass
class _Growing:
    """One lane: where it begins among all spans, how many it has, room for how many, its levels by width."""

    rank: int
    stage: Stage
    first: int = 0
    count: int = 0
    room: int = 0
    rows: int = 1
    levels: dict[int, dict[str, GrowingColumn]] = field(default_factory=dict)
    stale: int = 0
    """Its levels hold the spans before this one."""

    @property
    def places(self) -> slice:
        return slice(self.first, self.first + self.count)


class GrowingLanes:
    """All lanes of a running job. Not safe to use from several threads at once.

    Attributes:
        spans: Columns (`LANE_TYPES`) of all lanes, with room between them.
        moved: How many spans were written so far: new ones, those moved within a lane, and those moved with it.
    """

    def __init__(self) -> None:
        self.spans: Columns = {name: np.empty(0, dtype=kind) for name, kind in LANE_TYPES.items()}
        self.moved = 0
        self._lanes: dict[tuple[int, int], _Growing] = {}
        self._begin, self._end = 2**62, -(2**62)

    def __len__(self) -> int:
        return sum(lane.count for lane in self._lanes.values())

    def add(self, spans: SpanTable) -> None:
        """Add spans on the job's time, in any order; their texts share the codes of all others."""
        if not len(spans):
            return
        self._begin = min(self._begin, int(spans.begin_ns.min()))
        self._end = max(self._end, int(spans.end_ns.max()))
        fresh = [(self._lane(rank, stage), order) for rank, stage, order in by_lane(spans)]
        if any(lane.count + len(order) > lane.room for lane, order in fresh):
            self._make_room({(lane.rank, lane.stage): len(order) for lane, order in fresh})
        # Sorted and written at once: a poll brings little to each of many lanes.
        sorted_all = np.concatenate([order for _, order in fresh]) if fresh else np.empty(0, dtype=np.int64)
        columns, first = {name: getattr(spans, name)[sorted_all] for name in COLUMN_TYPES}, 0
        behind: list[tuple[_Growing, slice]] = []
        for lane, order in fresh:
            part = slice(first, first + len(order))
            if self._is_behind(lane, int(columns["begin_ns"][first])):
                behind.append((lane, part))
            else:
                self._put(lane, {name: column[part] for name, column in columns.items()})
            first = part.stop
        if behind:
            self._append(behind, columns)

    def shift(self, by: int) -> None:
        """Move all spans in time."""
        self._begin, self._end = self._begin + by, self._end + by
        for lane in self._lanes.values():
            for name in ("begin_ns", "end_ns", "reach"):
                self.spans[name][lane.places] += by
            lane.levels, lane.stale = {}, 0
        self.moved += len(self)

    def lanes(self) -> tuple[Lane, ...]:
        """Return the lanes as they are now, top to bottom; they show what is written into them later."""
        return tuple(self._shown(self._lanes[key]) for key in sorted(self._lanes))

    def _lane(self, rank: int, stage: Stage) -> _Growing:
        return self._lanes.setdefault((rank, STAGES.index(stage)), _Growing(rank, stage))

    def _make_room(self, coming: dict[tuple[int, Stage], int]) -> None:
        """Move all lanes into larger columns."""
        former, first = [lane.places for lane in self._lanes.values()], 0
        for lane in self._lanes.values():
            needed = lane.count + coming.get((lane.rank, lane.stage), 0)
            # Lanes that still fit get more room too: all grow alike, and each full one would move all of them again.
            lane.room = max(_LEAST_ROOM, lane.room, 2 * needed)
            for level in lane.levels.values():
                level["first"].shift(first - lane.first)
            lane.first = first
            first += lane.room
        for name, kind in LANE_TYPES.items():
            column: NDArray[Any] = np.empty(first, dtype=kind)
            for lane, places in zip(self._lanes.values(), former, strict=True):
                column[lane.places] = self.spans[name][places]
            self.spans[name] = column
        self.moved += len(self)

    def _is_behind(self, lane: _Growing, begin_ns: int) -> bool:
        """Whether no span of a lane begins later."""
        return not lane.count or bool(self.spans["begin_ns"][lane.places.stop - 1] <= begin_ns)

    def _append(self, fresh: list[tuple[_Growing, slice]], columns: Columns) -> None:
        """Put spans behind all that lanes have; of each lane a part of the columns."""
        places = np.concatenate([np.arange(part.stop - part.start) + lane.places.stop for lane, part in fresh])
        if len(places) < len(columns["begin_ns"]):
            chosen = np.concatenate([np.arange(part.start, part.stop) for _, part in fresh])
            columns = {name: column[chosen] for name, column in columns.items()}
        for name in COLUMN_TYPES:
            self.spans[name][places] = columns[name]
        for lane, part in fresh:
            start = lane.count
            lane.count += part.stop - part.start
            self._ended(lane, slice(lane.first + start, lane.places.stop))

    def _put(self, lane: _Growing, fresh: Columns) -> None:
        """Put spans into a lane, by begin."""
        old = self.spans["begin_ns"][lane.places]
        start = int(np.searchsorted(old, fresh["begin_ns"][0], "right"))
        tail, count = slice(lane.first + start, lane.first + lane.count), len(fresh["begin_ns"])
        lane.count += count
        part = slice(tail.start, lane.first + lane.count)
        if self._is_before(tail.start, fresh):
            # Spans behind the new ones only move and keep their rows, also when the backlog is added piece by piece.
            behind, part = slice(tail.start + count, tail.stop + count), slice(tail.start, tail.start + count)
            self.moved += tail.stop - tail.start
            for name in LANE_TYPES:
                self.spans[name][behind] = self.spans[name][tail]
            for name in COLUMN_TYPES:
                self.spans[name][part] = fresh[name]
        else:
            together = np.concatenate((self.spans["begin_ns"][tail], fresh["begin_ns"]))
            order = np.argsort(together, kind="stable")
            for name in COLUMN_TYPES:
                self.spans[name][part] = np.concatenate((self.spans[name][tail], fresh[name]))[order]
        self._ended(lane, part)

    def _ended(self, lane: _Growing, part: slice) -> None:
        """Note for spans that were written into a lane when all earlier ones have ended, and their rows."""
        lane.stale = min(lane.stale, part.start - lane.first)
        reach = np.maximum.accumulate(self.spans["end_ns"][part])
        if part.start > lane.first:
            np.maximum(reach, self.spans["reach"][part.start - 1], out=reach)
        self.spans["reach"][part] = reach
        if lane.stage in OVERLAPPING_STAGES:
            row = self.spans["row"][part] = self._rows(lane, part)
            lane.rows = max(lane.rows, int(row.max()) + 1)
        else:
            self.spans["row"][part] = 0
        self.moved += len(reach)

    def _is_before(self, place: int, fresh: Columns) -> bool:
        """Whether spans have all ended when the one at a place begins."""
        begin = self.spans["begin_ns"][place]
        return bool(fresh["begin_ns"][-1] < begin and fresh["end_ns"].max() <= begin)

    def _rows(self, lane: _Growing, part: slice) -> NDArray[np.int8]:
        """Rows of a lane's end; of the spans before it only those count that still go on."""
        begin, end = self.spans["begin_ns"][part], self.spans["end_ns"][part]
        going = int(np.searchsorted(self.spans["reach"][lane.first : part.start], begin[0], "right")) + lane.first
        taken: list[int] = [NEVER] * ROW_LIMIT
        before = (self.spans[name][going : part.start].tolist() for name in ("row", "end_ns"))
        for row, until in zip(*before, strict=True):
            taken[row] = max(taken[row], until)
        return rows_of(begin, end, taken)

    def levels_of(self, lane: _Growing) -> tuple[Level, ...]:
        """Return a lane's levels, which are updated only when they are requested."""
        if lane.stale < lane.count:
            self._level(lane, lane.stale)
            lane.stale = lane.count
        return tuple(
            Level(width_ns=width, **{name: column.view() for name, column in lane.levels[width].items()})
            for width in sorted(lane.levels)
        )

    def _level(self, lane: _Growing, changed: int) -> None:
        """Bring a lane's levels up to date, whose spans changed from a row on."""
        wanted = level_widths(lane.count, self._end - self._begin)
        finest = min(lane.levels, default=2**62)
        if wanted and wanted[0] < finest:
            lane.levels, changed = {}, 0
        for width in wanted:
            lane.levels.setdefault(width, {})
        begin = int(self.spans["begin_ns"][lane.first + changed])
        items: dict[str, GrowingColumn] | None = None
        for width in sorted(lane.levels):
            level = lane.levels[width]
            # A new or coarser level is made of all items of the level before.
            since = begin // width * width if level else NEVER
            if not level:
                level.update({name: GrowingColumn(kind) for name, kind in ITEM_TYPES.items()})
            source = self._spans_since(lane, since) if items is None else _since(items, since)
            start = int(np.searchsorted(level["begin"].view(), since, "left"))
            for name, values in coarser(source, width).items():
                level[name].cut(start)
                level[name].extend(values)
            items = level

    def _spans_since(self, lane: _Growing, begin_ns: int) -> Columns:
        """The spans of a lane from the first that begins at a moment or later, as items."""
        place = lane.first + int(np.searchsorted(self.spans["begin_ns"][lane.places], begin_ns, "left"))
        part = slice(place, lane.first + lane.count)
        return items_of((self.spans["begin_ns"][part], self.spans["end_ns"][part], self.spans["reach"][part]), place)

    def _shown(self, lane: _Growing) -> Lane:
        column = {name: self.spans[name][lane.places] for name in ("begin_ns", "end_ns", "reach", "row")}
        return Lane(
            rank=lane.rank,
            stage=lane.stage,
            first=lane.first,
            begin=column["begin_ns"],
            end=column["end_ns"],
            reach=column["reach"],
            row=column["row"],
            rows=lane.rows,
            levels=_Levels(lambda: self.levels_of(lane)),
        )


class _Levels(Sequence[Level]):
    """Levels that are made when the first one is asked for."""

    def __init__(self, make: Callable[[], tuple[Level, ...]]) -> None:
        self._make = make
        self._found: tuple[Level, ...] | None = None

    def _levels(self) -> tuple[Level, ...]:
        if self._found is None:
            self._found = self._make()
        return self._found

    def __len__(self) -> int:
        return len(self._levels())

    @overload
    def __getitem__(self, place: int) -> Level: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Level, ...]: ...

    def __getitem__(self, place: int | slice) -> Level | tuple[Level, ...]:
        return self._levels()[place]


def _since(items: dict[str, GrowingColumn], begin_ns: int) -> Columns:
    """The items of a level from the first that begins at a moment or later."""
    start = int(np.searchsorted(items["begin"].view(), begin_ns, "left"))
    return {name: column.view()[start:] for name, column in items.items()}
