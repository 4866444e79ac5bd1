"""A trace as tables of a database in memory: SQL over its spans, and files that other tools read.

Needs DuckDB (``pip install 'ringtune[timeline]'``). Tables: ``spans`` (one row a span), ``instants``, ``parts``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ringtune.errors import RingtuneError, TraceIoError
from ringtune.output_file import output_file
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import stage_labels

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = {
    "spans": "rank, host, stage, name, tensor, begin_ns, end_ns, duration_ns, bytes, batch, step, knobs_version, "
    "facts (JSON)",
    "instants": "name, category, rank, at_ns, args (JSON)",
    "parts": "rank, host, recorded, dropped, truncated, offset_ns, error_ns",
}
"""Columns by table, as the command's help shows them."""

_SPANS = """
create view spans as
select s.rank, coalesce(p.host, '') as host, g.label as stage, n.label as name, t.label as tensor, s.begin_ns,
       s.end_ns, s.end_ns - s.begin_ns as duration_ns, s.bytes, nullif(s.batch, 0) as batch,
       case when s.step < 0 then null else s.step end as step, s.knobs_version, '{' || f.label || '}' as facts
from raw_spans s
join names n on n.code = s.name join tensors t on t.code = s.tensor join stages g on g.code = s.stage
join fact_texts f on f.code = s.facts
left join (select rank, any_value(host) as host from parts group by rank) p on p.rank = s.rank
"""


@dataclass(frozen=True)
class Answer:
    """What a query gave: column names and rows of plain values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_json(self) -> list[dict[str, Any]]:
        """Return one object a row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def connect() -> DuckDBPyConnection:
    """Open an empty database in memory.

    Raises:
        RingtuneError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise RingtuneError("this needs duckdb, which is not installed: pip install 'ringtune[timeline]'") from error
    return duckdb.connect()


def open_database(trace: Trace) -> DuckDBPyConnection:
    """Return a database with the trace's tables; files and the network are closed to its queries.

    Raises:
        RingtuneError: DuckDB is not installed.
    """
    database = connect()
    spans = trace.spans
    columns = (
        "begin_ns",
        "end_ns",
        "rank",
        "stage",
        "name",
        "tensor",
        "bytes",
        "batch",
        "step",
        "knobs_version",
        "facts",
    )
    register(database, "raw_spans", {column: getattr(spans, column) for column in columns})
    register_texts(database, "names", spans.names)
    register_texts(database, "tensors", spans.tensors)
    register_texts(database, "fact_texts", spans.fact_texts)
    register_texts(database, "stages", stage_labels())
    database.execute("create table parts (rank integer, host varchar, recorded bigint, dropped bigint, "
                     "truncated boolean, offset_ns bigint, error_ns bigint)")  # fmt: skip
    database.execute("create table instants (name varchar, category varchar, rank integer, at_ns bigint, args varchar)")
    for part in trace.parts:
        row = [part.rank, part.host, part.recorded, part.dropped, part.truncated, part.offset_ns, part.error_ns]
        database.execute("insert into parts values (?, ?, ?, ?, ?, ?, ?)", row)
    for found in trace.instants:
        args = orjson.dumps(dict(found.args), default=str).decode()
        row = [found.name, found.category, found.rank, found.at_ns, args]
        database.execute("insert into instants values (?, ?, ?, ?, ?)", row)
    database.execute(_SPANS)
    return database


def register(database: DuckDBPyConnection, name: str, columns: dict[str, Any]) -> None:
    """Make numpy columns readable as a table, without copying them."""
    database.register(name, {column: np.ascontiguousarray(values) for column, values in columns.items()})


def register_texts(database: DuckDBPyConnection, name: str, texts: Sequence[str]) -> None:
    """Make a table (code, label) of texts; the code is the place."""
    listed = "select unnest(range(len($1::varchar[])))::integer as code, unnest($1::varchar[]) as label"
    database.execute(f"create table {name} as {listed}", [list(texts)])


def query(trace: Trace, sql: str) -> Answer:
    """Run one SQL statement over a trace.

    Raises:
        RingtuneError: DuckDB is not installed, or does not accept the statement.
    """
    import duckdb

    database = open_database(trace)
    try:
        # The statement is not trusted: it can read the trace and nothing else.
        database.execute("set enable_external_access = false")
        database.execute("set lock_configuration = true")
        answer = database.execute(sql)
        if answer is None:
            raise RingtuneError("the query holds no statement; try: select stage, count(*) from spans group by stage")
        columns = tuple(str(column[0]) for column in answer.description or ())
        return Answer(columns, tuple(answer.fetchall()))
    except duckdb.Error as error:
        tables = "; ".join(f"{name}({columns})" for name, columns in TABLES.items())
        raise RingtuneError(f"the query failed: {error}\nTables: {tables}") from error
    finally:
        database.close()


def export_parquet(trace: Trace, output: str | os.PathLike[str]) -> int:
    """Write the spans as a Parquet file, whole or not at all; return the number of rows.

    Raises:
        RingtuneError: DuckDB is not installed.
        TraceIoError: The file cannot be written.
    """
    import duckdb

    database = open_database(trace)
    try:
        with output_file(output, TraceIoError) as part:
            target = str(part).replace("'", "''")
            order = "order by begin_ns, rank, stage, end_ns desc, tensor"
            database.execute(f"copy (select * from spans {order}) to '{target}' (format parquet, compression zstd)")
    except duckdb.IOException as error:
        raise TraceIoError(f"{output}: cannot be written: {error}; choose another output") from error
    finally:
        database.close()
    return len(trace.spans)
