"""Typed tables: what a trace holds after reading, column by column.

Notation: n = number of spans; every column is a one-dimensional numpy array of length n. All times are
nanoseconds on one clock, which one `Trace.clock` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from ringtune.timeline.distinct import distinct
from ringtune.timeline.frames import Column, Tabular
from ringtune.timeline.vocabulary import FOREIGN_BATCHES, Stage

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Mask = NDArray[np.bool_]
Rows = NDArray[np.integer[Any]] | slice
Columns = Mapping[str, NDArray[Any]]

UNKNOWN = -1
"""Value of ``step`` where the trace does not say."""

MOST_RANKS = 1 << 16
"""More than any job has."""


@dataclass(frozen=True)
class SpanTable(Tabular):
    """Spans as columns; instants of the cycle stage have begin == end.

    ``name`` and ``tensor`` are indices into ``names`` and ``tensors``; ``tensors[0]`` is always "" (no tensor).
    ``batch`` 0 means none, ``step`` -1 means unknown. ``facts`` are indices into ``fact_texts``: further arguments of a
    span as the inside of a JSON object, in the order of `ringtune.timeline.vocabulary.FACTS`. Tables are immutable:
    filters and sorts return new ones.
    """

    begin_ns: Ints
    end_ns: Ints
    rank: Codes
    stage: NDArray[np.uint8]
    name: Codes
    tensor: Codes
    bytes: Ints
    batch: Ints
    step: Ints
    knobs_version: Codes
    facts: Codes
    names: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ("",)
    fact_texts: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.begin_ns)

    @property
    def duration_ns(self) -> Ints:
        """``end_ns - begin_ns``."""
        return self.end_ns - self.begin_ns

    def row_count(self) -> int:
        """Return the number of spans."""
        return len(self)

    def columns(self, most: int | None = None) -> dict[str, Column]:
        """Return the columns with texts in place of codes."""
        shown = self if most is None else self.take(slice(most))
        names = ("begin_ns", "duration_ns", "rank", "bytes", "batch", "step", "knobs_version")
        found: dict[str, Column] = {name: getattr(shown, name) for name in names}
        stages = [Stage(code).label for code in shown.stage.tolist()]
        return {**found, "stage": stages, "name": shown.name_texts(), "tensor": shown.tensor_texts()}

    def take(self, chosen: Mask | NDArray[np.integer[Any]] | slice) -> SpanTable:
        """Return the spans chosen by a mask, by indices (also to sort) or by a slice; string tables are shared."""
        if isinstance(chosen, np.ndarray) and chosen.dtype == np.bool_:
            chosen = _places(chosen.astype(np.bool_, copy=False))  # once, and not for every column
        columns = {column: getattr(self, column)[chosen] for column in COLUMN_TYPES}
        return SpanTable(**columns, names=self.names, tensors=self.tensors, fact_texts=self.fact_texts)

    def in_stage(self, *stages: Stage) -> Mask:
        """Which spans are of these stages."""
        if len(stages) > 1:
            return _among(stages)[self.stage]
        # A plain number: numpy probes a member of an enumeration for attributes on every comparison, which is slow.
        found: Mask = self.stage == int(stages[0])
        return found

    def foreign(self) -> Mask:
        """Which spans are of batches that another library carried."""
        return (self.batch >= FOREIGN_BATCHES.start) & (self.batch < FOREIGN_BATCHES.stop)

    def of_stage(self, *stages: Stage) -> SpanTable:
        """Return the spans of these stages."""
        return self.take(self.in_stage(*stages))

    def of_rank(self, rank: int) -> SpanTable:
        """Return the spans of one rank."""
        return self.take(self.rank == rank)

    def shifted(self, offset_ns: Ints | int) -> SpanTable:
        """Return the same spans moved in time by one offset or one per span."""
        return replace(self, begin_ns=self.begin_ns + offset_ns, end_ns=self.end_ns + offset_ns)

    def name_texts(self) -> list[str]:
        """The names, span by span."""
        return [self.names[code] for code in self.name.tolist()]

    def tensor_texts(self) -> list[str]:
        """The tensors' names, span by span ("" = none)."""
        return [self.tensors[code] for code in self.tensor.tolist()]

    def fact(self, name: str, missing: int = UNKNOWN, rows: Rows = slice(None)) -> Ints:
        """A number that spans carry as a fact, for example ``peer``, span by span; ``rows``: of these alone."""
        values = [_facts_of(text).get(name, missing) for text in self.fact_texts]
        table = np.array([value if isinstance(value, int) else missing for value in values], dtype=np.int64)
        codes = self.facts[rows]
        same = (table == table[0]).all()
        return np.full(len(codes), table[0], dtype=np.int64) if same else table[codes]

    @cached_property
    def threads(self) -> tuple[Ints, tuple[str, ...]]:
        """Number of the thread or stream that each of ``fact_texts`` says, 0 for none, and the names by number."""
        said = [str(_facts_of(text).get("thread", "")) for text in self.fact_texts]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(["", *said]))}
        return np.array([numbers[name] for name in said], dtype=np.int64), tuple(numbers)

    def says(self, name: str, value: int) -> Mask:
        """Which spans carry this number as a fact."""
        return self._with(np.array([_facts_of(text).get(name) == value for text in self.fact_texts]), self.facts)

    def process_sets(self, rows: Rows = slice(None)) -> Ints:
        """The number of each span's process set or group; 0: all ranks."""
        return np.maximum(self.fact("process_set", 0, rows), 0)

    def name_mask(self, *starts: str) -> Mask:
        """Which spans' names start with one of these texts."""
        return self._with(np.array([name.startswith(starts) for name in self.names], dtype=np.bool_), self.name)

    def _with(self, hit: Mask, codes: Codes) -> Mask:
        """Which spans have one of the codes that are hit; most often none is, and nothing is looked up."""
        return hit[codes] if hit.any() else np.zeros(len(self), dtype=np.bool_)


def _places(mask: Mask) -> NDArray[np.intp] | slice:
    """Return the rows of a mask; as a slice, which copies nothing, where they follow each other: those of a rank do."""
    first = int(mask.argmax()) if len(mask) else 0
    count = int(np.count_nonzero(mask))
    if mask[first : first + count].all():
        return slice(first, first + count)
    return np.flatnonzero(mask)


@lru_cache(maxsize=64)
def _among(stages: tuple[Stage, ...]) -> Mask:
    """Return for every number of a stage whether it is among these."""
    found = np.zeros(256, dtype=np.bool_)
    found[[int(stage) for stage in stages]] = True
    return found


@lru_cache(maxsize=4096)
def _facts_of(text: str) -> Mapping[str, Any]:
    """Facts from the inside of a JSON object; cached, because there are few distinct texts."""
    found: Mapping[str, Any] = orjson.loads(b"{" + text.encode() + b"}")
    return found


COLUMN_TYPES: Mapping[str, type[np.generic]] = {
    "begin_ns": np.int64,
    "end_ns": np.int64,
    "rank": np.int32,
    "stage": np.uint8,
    "name": np.int32,
    "tensor": np.int32,
    "bytes": np.int64,
    "batch": np.int64,
    "step": np.int64,
    "knobs_version": np.int32,
    "facts": np.int32,
}


def empty_table() -> SpanTable:
    """Return a table without spans."""
    return SpanTable(**{column: np.empty(0, dtype=kind) for column, kind in COLUMN_TYPES.items()})  # type: ignore[arg-type]


def concatenate(tables: Sequence[SpanTable]) -> SpanTable:
    """Join tables whose string tables may differ; strings keep the order of first appearance."""
    return joined_tables(iter(tables), sum(map(len, tables)))


def room_for(count: int) -> Columns:
    """Return columns for so many spans; memory that is not written to yet costs nothing."""
    return {column: np.empty(count, dtype=kind) for column, kind in COLUMN_TYPES.items()}


def fill(room: Columns, tables: Sequence[SpanTable]) -> bool:
    """Whether these tables, one behind the other, are what these columns hold."""
    end = 0
    for table in tables:
        if not _is(table.begin_ns, room["begin_ns"][end:]):
            return False
        end += len(table)
    return end == len(room["begin_ns"])


def _is(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays begin at the same place in memory."""
    return bool(one.__array_interface__["data"] == other.__array_interface__["data"])


def joined_tables(tables: Iterator[SpanTable], count: int, room: Columns | None = None) -> SpanTable:
    """Join tables one after the other, each of which is needed no longer when the next one is asked for.

    Args:
        tables: As for `concatenate`.
        count: How many spans they have together.
        room: Columns of so many spans to take; what lies in its place there already is not copied.
    """
    names: dict[str, int] = {}
    tensors: dict[str, int] = {"": 0}
    facts: dict[str, int] = {"": 0}
    joined = room_for(count) if room is None else room
    end = 0
    for table in tables:
        begin, end = end, end + len(table)
        maps = {
            "name": _intern(names, table.names),
            "tensor": _intern(tensors, table.tensors),
            "facts": _intern(facts, table.fact_texts),
        }
        for column, place in joined.items():
            values = getattr(table, column)
            if column in maps and np.any(maps[column] != np.arange(len(maps[column]))):
                values = maps[column][values]
            if not _is(values, place[begin:end]):
                place[begin:end] = values
    assert end == count
    return SpanTable(**joined, names=tuple(names), tensors=tuple(tensors), fact_texts=tuple(facts))


def _intern(table: dict[str, int], texts: Sequence[str]) -> Codes:
    return np.array([table.setdefault(text, len(table)) for text in texts], dtype=np.int32)


@dataclass(frozen=True)
class Instant:
    """A rare event at one moment (knob change, stall, error, clock sample)."""

    name: str
    category: str
    rank: int
    at_ns: int
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PartInfo:
    """What is known about one rank's part of a trace.

    ``recorded`` is None when the part has no end mark. ``truncated``: the end mark is missing or the file's tail is
    damaged; what stood before it was read. ``offset_ns`` and ``error_ns`` say how the part's clock was brought to
    rank 0's (0 before merging; ``error_ns`` None = not known).
    """

    rank: int
    size: int = 1
    host: str = ""
    job: str = ""
    recorded: int | None = None
    dropped: int = 0
    truncated: bool = False
    offset_ns: int = 0
    error_ns: int | None = 0
    unix_ns: int = 0
    monotonic_ns: int = 0
    path: Path | None = None
    drift_ppb: int | None = 0
    """How many ns a second the part's clock lost against rank 0's (None = not a steady drift, or not known)."""
    file: int = 0
    """Number of the file, where a rank wrote several (`ringtune.timeline.merging.parts.one_part_a_rank` joins them)."""
    rank_known: bool = True
    """Whether the trace or its name says the rank; where neither does, ``rank`` is 0."""


@dataclass(frozen=True)
class Trace:
    """A trace as tables.

    ``source``: ``part`` (one rank), ``merged``, ``horovod`` (Horovod's own timeline), ``chrome`` (any other).
    ``clock``: what the times count: ``monotonic`` (a host's clock) or ``job`` (from the job's first event, rank 0's
    clock). ``skipped`` counts events that made no sense and were left out.
    """

    spans: SpanTable
    instants: tuple[Instant, ...]
    parts: tuple[PartInfo, ...]
    source: str
    clock: str = "monotonic"
    origin_ns: int = 0
    skipped: int = 0
    path: Path | None = None
    buckets: Mapping[int, str] = field(default_factory=dict)
    """Names of DDP's buckets by their number of elements, where the steps that say them are left out."""

    @cached_property
    def derived(self) -> dict[Any, Any]:
        """What was computed from this trace, see `once_a_trace`."""
        return {}

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that left anything, in order."""
        seen = set(distinct(self.spans.rank).tolist()) | {part.rank for part in self.parts}
        return tuple(sorted(seen | {instant.rank for instant in self.instants}))

    @property
    def size(self) -> int:
        """Ranks of the job as far as the trace knows them; bounded, because damage may claim any number."""
        declared = max((part.size for part in self.parts), default=0)
        return min(MOST_RANKS, max(declared, max(self.ranks, default=-1) + 1))

    def instants_named(self, name: str) -> tuple[Instant, ...]:
        """Instants of this name, in the order of the trace."""
        return tuple(instant for instant in self.instants if instant.name == name)


Derive = TypeVar("Derive", bound=Callable[..., Any])


def once_a_trace(function: Derive) -> Derive:
    """Keep what a function of a trace and of plain values returns for as long as the trace, which never changes."""

    @wraps(function)
    def kept(trace: Trace, *arguments: Any) -> Any:
        key = (function, arguments)
        if key not in trace.derived:
            trace.derived[key] = function(trace, *arguments)
        return trace.derived[key]

    return cast(Derive, kept)


assert {f.name for f in fields(SpanTable)} == set(COLUMN_TYPES) | {"names", "tensors", "fact_texts"}
