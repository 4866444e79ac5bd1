"""Parts as tables of a database, for merging millions of events in bounded memory. Needs DuckDB.

A part that is odd (torn, damaged, of another tool) is read event by event and put into a table of the same shape.
Spans go to disk when memory is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ringtune.timeline.database import register, register_texts
from ringtune.timeline.merging.merged_file import badly_nested
from ringtune.timeline.merging.out_of_core import load_all, with_first
from ringtune.timeline.reading.bulk import parse_file
from ringtune.timeline.reading.interpretation import read_events
from ringtune.timeline.spans import Ints, Trace
from ringtune.timeline.vocabulary import OVERLAPPING_STAGES

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class PartTable:
    """One part in the database. ``about`` is its trace with at most the first span; ``count`` its spans.

    ``shift_ns`` is still to be added to the table's times.
    """

    table: str
    about: Trace
    count: int
    shift_ns: int = 0


def load_parts(
    database: DuckDBPyConnection, paths: Sequence[Path]
) -> tuple[list[PartTable], list[Trace], dict[Path, str]]:
    """Read files into tables; the result is that of `ringtune.timeline.merging.out_of_core.load_all`."""
    return load_all(paths, lambda number, path: _load(database.cursor(), f"part_{number}", path))


def _load(cursor: DuckDBPyConnection, table: str, path: Path) -> PartTable | Trace:
    quick = _load_parsed(cursor, table, path)
    if quick is not None:
        return quick
    trace = read_events(path)
    if trace.source != "part" or len(trace.parts) != 1:
        return trace
    return insert(cursor, table, trace)


def _load_parsed(cursor: DuckDBPyConnection, table: str, path: Path) -> PartTable | None:
    """Parse a part with DuckDB; None when anything about it is not as the recorder writes it."""
    found = parse_file(cursor, table, path)
    if found is not None and found.about.source == "part" and not found.pairs:
        return _with_first(cursor, table, found.about, found.count)
    cursor.execute(f"drop table if exists {table}")
    return None


def _with_first(cursor: DuckDBPyConnection, table: str, about: Trace, count: int) -> PartTable:
    """Add the first span's moment, which says where the part begins."""
    first = cursor.execute(f"select min(begin_ns) from {table}").fetchall()[0][0]
    return PartTable(table, with_first(about, first), count)


_TEXTS = ("names", "tensors", "fact_texts")


def insert(cursor: DuckDBPyConnection, table: str, trace: Trace) -> PartTable:
    """Put a trace that is in memory into a table."""
    spans = trace.spans
    columns = [name for name in vars(spans) if name not in _TEXTS]
    register(cursor, f"{table}_columns", {name: getattr(spans, name) for name in columns})
    register_texts(cursor, f"{table}_names", spans.names)
    register_texts(cursor, f"{table}_tensors", spans.tensors)
    register_texts(cursor, f"{table}_facts", spans.fact_texts)
    cursor.execute(
        f"create table {table} as select n.label as name, t.label as tensor, f.label as facts, "
        f"c.* exclude (name, tensor, facts) from {table}_columns c left join {table}_names n on n.code = c.name "
        f"left join {table}_tensors t on t.code = c.tensor left join {table}_facts f on f.code = c.facts"
    )
    cursor.unregister(f"{table}_columns")
    return _with_first(cursor, table, trace, len(spans))


def moments(database: DuckDBPyConnection, table: str, where: str = "true") -> tuple[Ints, Ints]:
    """Begin and end of a table's spans, in the table's order."""
    found = database.execute(f"select begin_ns, end_ns from {table} where {where}").fetchnumpy()
    return np.asarray(found["begin_ns"], dtype=np.int64), np.asarray(found["end_ns"], dtype=np.int64)


def column_of(database: DuckDBPyConnection, table: str, column: str, where: str) -> Ints:
    """One column of whole numbers, in the table's order."""
    found = database.execute(f"select {column} from {table} where {where}").fetchnumpy()
    return np.asarray(found[column], dtype=np.int64)


def find_pairs(database: DuckDBPyConnection, view: str) -> str:
    """Return an SQL condition on ``stage`` and ``place``: which spans must be written as async pairs.

    Spans of one rank and stage share a track, whichever file they came from.
    """
    always = ", ".join(str(int(stage)) for stage in sorted(OVERLAPPING_STAGES))
    tracks = database.execute(f"select distinct rank, stage from {view} where stage not in ({always})").fetchall()
    bad: list[Ints] = []
    for rank, stage in tracks:
        track = f"rank = {rank} and stage = {stage}"
        begin, end = moments(database, view, track)
        if np.all(begin[1:] >= end[:-1]):
            continue  # the usual case: one after another, as they were recorded
        place = column_of(database, view, "place", track)
        order = np.lexsort((-end, begin))
        bad.append(place[order][badly_nested(begin[order], end[order])])
    condition = f"stage in ({always})"
    found = np.concatenate(bad) if bad else np.empty(0, dtype=np.int64)
    if not len(found):
        return condition
    register(database, "badly_nested", {"place": found})
    return f"({condition} or place in (select place from badly_nested))"
