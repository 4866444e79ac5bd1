"""Merging in a database: as `ringtune.timeline.merge`, for millions of events.

The parts' tables are sorted together and turned into lines of JSON by DuckDB, on all cores; what does not fit into
memory waits on the disk, in a folder beside the output that vanishes in any case.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.database import register
from ringtune.timeline.merging.bulk_parts import PartTable, find_pairs, insert, load_parts, moments
from ringtune.timeline.merging.clocks import HostOffset
from ringtune.timeline.merging.out_of_core import frame, on_one_clock, plain_target
from ringtune.timeline.merging.parts import joinable, missing_ranks
from ringtune.timeline.merging.report import MergeReport
from ringtune.timeline.reading.bulk import bulk_database
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import BUS_NAME, FLOW_CATEGORY, STAGE_LIMIT, Stage, stage_labels

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SLICE_SPANS = 12_000_000
"""Spans sorted at once: more are cut into pieces by time, so that memory does not grow with the job."""

_LABELS = "[" + ", ".join(f"'{label}'" for label in stage_labels()) + "]"


def _time(moment: str) -> str:
    """SQL for nanoseconds as microseconds with three decimals; decimals, because doubles would round."""
    return f"((({moment})::decimal(18, 0)) * 0.001::decimal(4, 3))::decimal(18, 3)"


def _begin(phase: str, moment: str = "begin_ns") -> str:
    """SQL for an event's beginning, up to its moment."""
    return (
        f"""'{{"name":', quoted_name, ',"cat":"', {_LABELS}[stage + 1], '","ph":"{phase}","pid":', rank, ',"tid":', """
        f"""stage, ',"ts":', {_time(moment)}"""
    )


_KNOWN = """case when step < 0 then '' else concat('"step":', step, ',') end, '"knobs_version":', knobs_version"""
_TENSOR = """case when quoted_tensor = '""' then '' else concat('"tensor":', quoted_tensor, ',') end"""
_ARGS = f"""
',"args":{{', {_TENSOR}, '"bytes":', bytes, ',', case when facts = '' then '' else concat(facts, ',') end,
case when batch = 0 then '' else concat('"batch":', batch, ',') end,
{_KNOWN}, '}}}},'
"""
_LINE = f"""
case
  when paired then concat({_begin("b")}, ',"id2":{{"local":', place, '}}', {_ARGS}, chr(10),
    {_begin("e", "begin_ns + duration_ns")}, ',"id2":{{"local":', place, '}}}},')
  when stage = {Stage.COUNTER:d} and name = '{BUS_NAME}'
    then concat({_begin("C")}, ',"args":{{"bytes_per_s":', bytes, '}}}},')
  when stage = {Stage.COUNTER:d}
    then concat({_begin("C")}, ',"args":{{"bytes":', bytes, ',"operations":', batch, '}}}},')
  when stage = {Stage.CYCLE:d} and duration_ns = 0
    then concat({_begin("i")}, ',"s":"p","args":{{', {_KNOWN}, '}}}},')
  else concat({_begin("X")}, ',"dur":', {_time("duration_ns")}, {_ARGS})
end
"""
_FLOWS = f"""
select concat('{{"name":"batch","cat":"{FLOW_CATEGORY}","ph":"', case when number = 1 then 's' when number = ranks then
  'f","bp":"e' else 't' end, '","id":', $base + identity, ',"pid":', rank, ',"tid":{Stage.COMMUNICATE:d},"ts":',
  {_time("begin_ns")}, '}},') as line
from (
  select rank, begin_ns, row_number() over (partition by batch order by begin_ns, rank) as number,
    count(*) over (partition by batch) as ranks, dense_rank() over (order by batch) as identity
  from (select batch, rank, min(begin_ns) as begin_ns from spans where stage = {Stage.COMMUNICATE:d} and batch > 0
        group by batch, rank)
)
where ranks > 1 order by identity, number
"""


@dataclass(frozen=True)
class _Joined:
    """The job as one trace without its spans, and its parts' tables."""

    trace: Trace
    tables: tuple[PartTable, ...]
    problems: tuple[str, ...]


def merge_in_bulk(paths: Sequence[Path], output: Path) -> MergeReport:
    """Merge part files with DuckDB; arguments, result and errors are those of `ringtune.timeline.merge`."""
    import duckdb

    try:
        with plain_target(output) as target, bulk_database(target.parent) as database:
            joined = _joined(database, paths)
            _write(database, joined, target)
    except duckdb.IOException as error:
        raise TraceIoError(f"{output}: cannot be written: {error}; choose another output") from error
    trace = joined.trace
    count = sum(table.count for table in joined.tables)
    return MergeReport(output, count, trace.parts, missing_ranks(trace), joined.problems)


def _joined(database: DuckDBPyConnection, paths: Sequence[Path]) -> _Joined:
    """Read all files and bring them onto one clock.

    Raises:
        RingtuneError: As for `merge`.
    """
    parts, foreign, unread = load_parts(database, paths)
    usable, problems = joinable(foreign)
    problems = sorted([*unread.values(), *problems])
    if not parts and not usable:
        raise RingtuneError(f"nothing to merge: {problems[0]}")
    tables = {id(part.about): part for part in parts}
    for number, trace in enumerate(usable):
        table = insert(database, f"other_{number}", trace)
        tables[id(table.about)] = table
    joined = on_one_clock(
        [table.about for table in tables.values()], lambda trace: _last_ns(database, tables[id(trace)])
    )
    moved = tuple(
        _moved(database, tables[id(trace)], offset, joined.trace.origin_ns)
        for trace, offset in zip(joined.ordered, joined.offsets, strict=True)
    )
    return _Joined(joined.trace, moved, tuple(problems))


def _last_ns(database: DuckDBPyConnection, part: PartTable) -> int | None:
    """End of its last span; None where it has none."""
    found: tuple[int | None] = database.execute(f"select max(end_ns) from {part.table}").fetchall()[0]
    return found[0]


def _moved(database: DuckDBPyConnection, part: PartTable, offset: HostOffset, origin: int) -> PartTable:
    """Put a part's table onto the job's time."""
    if len(offset.at_ns) == 1:
        return replace(part, shift_ns=int(offset.offset_ns[0]) - origin)
    begin, end = moments(database, part.table)
    times = {"begin_ns": begin + offset(begin) - origin, "end_ns": end + offset(end) - origin}
    register(database, f"{part.table}_times", times)
    database.execute(
        f"create table {part.table}_moved as select p.* exclude (begin_ns, end_ns), t.begin_ns, t.end_ns "
        f"from {part.table} p positional join {part.table}_times t"
    )
    database.unregister(f"{part.table}_times")
    database.execute(f"drop table {part.table}")
    return replace(part, table=f"{part.table}_moved")


def _write(database: DuckDBPyConnection, joined: _Joined, target: Path) -> None:
    last_place = _make_view(database, joined)
    used = database.execute("select distinct rank, stage from spans order by all").fetchall()
    head, last = frame(joined.trace, joined.problems, [(int(rank), Stage(stage)) for rank, stage in used])
    names, tensors = (_quoting(database, column) for column in ("name", "tensor"))
    piece = target.with_name(target.name + ".piece")
    try:
        for number, where in enumerate(_slices(database, sum(table.count for table in joined.tables))):
            spans = f"select * from spans where {where} order by begin_ns, track, duration_ns desc, place"
            quoted = f"select *, {names} as quoted_name, {tensors} as quoted_tensor from ({spans})"
            lines = f"select {_LINE} as line from ({quoted})"
            if number == 0:
                _copy(database, lines, target, head.decode())
            else:
                _append(database, lines, target, piece)
        _append(database, _FLOWS.replace("$base", str(last_place)), target, piece)
        with open(target, "ab") as file:
            file.write(last)
    finally:
        with suppress(OSError):
            piece.unlink()


def _make_view(database: DuckDBPyConnection, joined: _Joined) -> int:
    """Make the view ``spans`` of all parts, as narrow as sorting allows; return the largest place."""
    count = len(joined.tables)
    views = [
        f"select name, tensor, stage, rank, begin_ns + {table.shift_ns} as begin_ns, end_ns + {table.shift_ns} as "
        f"end_ns, bytes, batch, step, knobs_version, facts, rowid * {count} + {number + 1} as place from {table.table}"
        for number, table in enumerate(joined.tables)
    ]
    database.execute(f"create view every_span as {' union all by name '.join(views)}")
    database.execute(
        f"create view texts as select * exclude (end_ns), rank * {STAGE_LIMIT} + stage as track, end_ns - begin_ns as "
        f"duration_ns, {find_pairs(database, 'every_span')} as paired from every_span"
    )
    narrow = [f"{column}::{column}_text as {column}" for column in _TEXTS]
    for column in _TEXTS:
        # Sorting moves numbers instead of texts.
        database.execute(f"create type {column}_text as enum (select distinct {column} from texts order by 1)")
    largest = database.execute(
        f"select {', '.join(f'coalesce(max(abs({column})), 0)' for column in _NUMBERS)} from texts"
    ).fetchall()[0]
    for column, limit in zip(_NUMBERS, largest, strict=True):
        kind = next(kind for kind, bits in _INTEGERS if limit < 2 ** (bits - 1))
        narrow.append(f"{column}::{kind} as {column}")
    database.execute(f"create view spans as select * replace ({', '.join(narrow)}) from texts")
    return int(largest[_NUMBERS.index("place")])


_TEXTS = ("name", "tensor", "facts")
_NUMBERS = ("rank", "track", "duration_ns", "bytes", "batch", "step", "knobs_version", "place")
_INTEGERS = (("tinyint", 8), ("smallint", 16), ("integer", 32), ("bigint", 64))


def _slices(database: DuckDBPyConnection, count: int) -> Iterator[str]:
    """Conditions that cut the job's time into pieces which can be sorted in memory, in order."""
    pieces = -(-count // SLICE_SPANS)
    if pieces <= 1:
        yield "true"
        return
    shares = ", ".join(str(number / pieces) for number in range(1, pieces))
    found = database.execute(f"select approx_quantile(begin_ns, [{shares}]) from spans").fetchall()[0][0]
    cuts = sorted({int(cut) for cut in found})
    yield f"begin_ns < {cuts[0]}"
    for low, high in pairwise(cuts):
        yield f"begin_ns >= {low} and begin_ns < {high}"
    yield f"begin_ns >= {cuts[-1]}"


def _append(database: DuckDBPyConnection, lines: str, target: Path, piece: Path) -> None:
    _copy(database, lines, piece, "")
    with open(target, "ab") as file, open(piece, "rb") as written:
        shutil.copyfileobj(written, file, 1 << 20)


def _copy(database: DuckDBPyConnection, lines: str, target: Path, head: str) -> None:
    """Write the lines of a query as they are, behind a head."""
    around = f", prefix {_text(head)}, suffix {_text(chr(10))}" if head else ""
    plain = "format csv, header false, quote '', escape '', delimiter '\x01'"
    database.execute(f"copy ({lines}) to {_text(str(target))} ({plain}{around})")


def _quoting(database: DuckDBPyConnection, column: str) -> str:
    """SQL for a text as JSON; escaping costs, and is left out when nothing needs it."""
    plain = f"concat('\"', {column}, '\"')"
    texts = f"select unnest(enum_range(null::{column}_text))::varchar as {column}"
    needed = f"select bool_or(to_json({column})::varchar <> {plain}) from ({texts})"
    return f"to_json({column}::varchar)::varchar" if database.execute(needed).fetchall()[0][0] else plain


def _text(value: str) -> str:
    """An SQL literal."""
    return "'" + value.replace("'", "''") + "'"
