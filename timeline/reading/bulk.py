"""Lines of ringtune's own files as rows of a database: millions of events a second in bounded memory. Needs DuckDB.

A well-formed file is parsed by DuckDB on all cores; its few events that are no spans by `Collector`, as always.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import orjson

from ringtune.errors import TraceIoError
from ringtune.timeline.reading.interpretation import interpret_lines
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import FACTS, FLOW_CATEGORY, Stage

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_BYTES = 1_400_000_000
"""What DuckDB may hold; the process is a few hundred MB larger."""

_SHAPE = (
    '{"name":"VARCHAR","cat":"VARCHAR","ph":"VARCHAR","pid":"INTEGER","ts":"DOUBLE","dur":"DOUBLE","id":"BIGINT",'
    '"id2":{"local":"BIGINT"},'
    '"args":{"tensor":"VARCHAR","bytes":"BIGINT","batch":"BIGINT","step":"BIGINT","knobs_version":"INTEGER",'
    '"operations":"BIGINT","bytes_per_s":"BIGINT","submitted":"JSON","copied":"JSON","algorithm":"VARCHAR",'
    '"dtype":"VARCHAR","wire":"VARCHAR","process_set":"BIGINT","step_schedule":"BIGINT","peer":"BIGINT",'
    '"device":"BIGINT","epoch":"INTEGER","plan":"BIGINT"}}'  # the last two in files of earlier versions
)
_SPAN, _CYCLE, _BEGIN, _END, _FLOW, _OTHER = range(6)
_KIND = f"""
case when e.args.submitted is not null or e.args.copied is not null then {_OTHER}
  when e.ph = 'X' or (e.ph = 'C' and e.cat = '{Stage.COUNTER.label}') then {_SPAN}
  when e.ph = 'i' and e.cat = '{Stage.CYCLE.label}' then {_CYCLE}
  when e.ph = 'b' then {_BEGIN} when e.ph = 'e' then {_END}
  when e.ph in ('s', 't', 'f') and e.cat = '{FLOW_CATEGORY}' then {_FLOW} else {_OTHER} end
"""
_STAGE = (
    "case e.cat " + " ".join(f"when '{stage.label}' then {int(stage)}" for stage in Stage) + f" else {Stage.OTHER} end"
)
_NS = "(floor(e.$)::bigint * 1000 + round_even((e.$ - floor(e.$)) * 1000, 0)::bigint)"
"""Microseconds as whole nanoseconds, exactly as `ringtune.timeline.reading.columns.nanoseconds` computes them."""

_FACT = {name: f"to_json(e.args.{name})" for name in ("algorithm", "dtype", "wire")}
_FACT["step_schedule"] = "coalesce(e.args.step_schedule, e.args.plan)"
_FACTS = (
    "concat_ws(',', "
    + ", ".join(f"""'"{name}":' || ({_FACT.get(name, f"e.args.{name}")})::varchar""" for name in FACTS)
    + ")"
)
"""As `ringtune.timeline.reading.columns` writes them."""

_READ = f"""
create table $table as
select {_KIND}::utinyint as kind, case when {_KIND} = {_OTHER} then line end as line, e.name as name,
  coalesce(e.args.tensor, '') as tensor, ({_STAGE})::utinyint as stage, e.pid as rank,
  {_NS.replace("$", "ts")} as begin_ns,
  {_NS.replace("$", "ts")} + case when e.ph = 'X' then {_NS.replace("$", "dur")} else 0 end as end_ns,
  coalesce(e.args.bytes, e.args.bytes_per_s, 0) as bytes, coalesce(e.args.batch, e.args.operations, 0) as batch,
  coalesce(e.args.step, -1) as step,
  coalesce(e.args.knobs_version, e.args.epoch, 0) as knobs_version, {_FACTS} as facts,
  coalesce(e.id, e.id2.local) as id
from (
  select line, from_json(
    case when not starts_with(line, '{{') then null when ends_with(line, '}},') then left(line, -1)
      when ends_with(line, '}}') then line end, '{_SHAPE}') as e
  from read_csv(?, columns = {{'line': 'VARCHAR'}}, delim = '\x01', quote = '', escape = '', header = false,
    auto_detect = false)
)
"""
"""One line, one event, as ringtune writes them; of what is no span the line is kept."""


@contextmanager
def bulk_database(spill: Path) -> Iterator[DuckDBPyConnection]:
    """Open a database that spills into a folder inside ``spill`` (which must exist), removed at the end."""
    import duckdb

    with TemporaryDirectory(prefix=".ringtune-", dir=spill) as folder:
        database = duckdb.connect()
        try:
            database.execute(f"set memory_limit = '{MEMORY_BYTES}B'")
            database.execute("set enable_progress_bar = false")
            database.execute(f"set temp_directory = '{_quoted(folder)}'")
            yield database
        finally:
            database.close()


def available() -> bool:
    """Whether DuckDB is installed."""
    try:
        import duckdb  # noqa: F401
    except ImportError:
        return False
    return True


@dataclass(frozen=True)
class Parsed:
    """A file in a table with only its spans: ``about`` is the trace without them, ``pairs`` how many are pairs."""

    about: Trace
    count: int
    pairs: int


def parse_file(cursor: DuckDBPyConnection, table: str, path: Path) -> Parsed | None:
    """Parse a part or a merged file into a table; None when anything is not as ringtune writes it."""
    import duckdb

    with suppress(duckdb.Error, UnicodeDecodeError, orjson.JSONDecodeError, TraceIoError):
        cursor.execute(_READ.replace("$table", table), [_literal(path)])
        rest = cursor.execute(f"select line from {table} where kind = {_OTHER} order by rowid").fetchall()
        about = interpret_lines(path, [line.encode() for (line,) in rest])
        wrong = "name is null or rank is null or begin_ns is null or end_ns is null or end_ns < begin_ns"
        spans = f"kind in ({_SPAN}, {_CYCLE}, {_BEGIN})"
        odd, count, begins, ends = cursor.execute(
            f"select count(*) filter ({spans} and ({wrong})), count(*) filter ({spans}), "
            f"count(*) filter (kind = {_BEGIN}), count(*) filter (kind = {_END}) from {table}"
        ).fetchall()[0]
        if about is not None and not len(about.spans) and not odd and begins == ends:
            if begins and not _close_pairs(cursor, table, begins):
                return None
            cursor.execute(f"delete from {table} where kind > {_BEGIN}")
            return Parsed(about, count, begins)
    return None


def _close_pairs(cursor: DuckDBPyConnection, table: str, pairs: int) -> bool:
    """Give every begun pair its end; False when they do not match one to one."""
    ends = f"select rank, stage, id, begin_ns as at_ns from {table} where kind = {_END}"
    match = f"p.kind = {_BEGIN} and p.rank = e.rank and p.stage = e.stage and p.id = e.id where p.kind <= {_BEGIN}"
    end = f"case when p.kind = {_BEGIN} then e.at_ns else p.end_ns end"
    cursor.execute(
        f"create table {table}_closed as select p.* replace ({end} as end_ns) "
        f"from {table} p left join ({ends}) e on {match}"
    )
    closed, beyond = cursor.execute(
        f"select count(*) filter (kind = {_BEGIN} and end_ns >= begin_ns), count(*) filter (kind = {_BEGIN}) "
        f"from {table}_closed"
    ).fetchall()[0]
    cursor.execute(f"drop table {table}")
    cursor.execute(f"alter table {table}_closed rename to {table}")
    return bool(closed == beyond == pairs)


def _literal(path: Path) -> str:
    """The path for DuckDB, which would otherwise take some characters for a pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(path))


def _quoted(text: str) -> str:
    return text.replace("'", "''")
