"""SQL over a trace and Parquet: all spans, nothing else of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.spans import Trace
from ringtune.timeline.synthetic.generate import Schedule
from tests.conftest import needs
from tests.timeline.helpers import four_ranks, generate, merged, rows
from tests.timeline.scenario import Scenario, simulate

duckdb = needs("duckdb")

from ringtune.timeline.database import TABLES, export_parquet, open_database, query  # noqa: E402


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return merged(generate(four_ranks(late_rank=1, late_ns=1000, knob_change_step=2)), tmp_path_factory.mktemp("sql"))


def test_spans_hold_every_column(trace: Trace) -> None:
    plain = "begin_ns, end_ns, rank, stage, bytes, coalesce(batch, 0), coalesce(step, -1), knobs_version, name, tensor"
    found = query(trace, f"select {plain} from spans")
    stage = [str(row[3]) for row in found.rows]
    expected = rows(trace.spans)
    assert sorted(stage) == sorted(_labels(trace))
    assert sorted((*row[:3], *row[4:]) for row in found.rows) == sorted((*row[:3], *row[4:-1]) for row in expected)


def _labels(trace: Trace) -> list[str]:
    from ringtune.timeline.vocabulary import Stage

    return [Stage(code).label for code in trace.spans.stage.tolist()]


def test_tables_are_those_the_help_names(trace: Trace) -> None:
    database = open_database(trace)
    for table, columns in TABLES.items():
        found = [row[0] for row in database.execute(f"describe {table}").fetchall()]
        assert found == columns.replace(" (JSON)", "").split(", ")
    assert query(trace, "select distinct host from spans order by 1").rows == (("host-a",), ("host-b",))
    knobs = (
        "select cast(json_extract(args, '$.knobs_version') as integer) from instants where name = 'KNOBS' and rank = 0"
    )
    assert query(trace, knobs).rows == ((1,), (2,))


@pytest.mark.parametrize(
    "sql",
    ["select nothing from spans", "select * from 'trace.json'", "copy spans to 'stolen.csv'", "install httpfs",
     "set enable_external_access = true", "attach 'other.db'"],
)  # fmt: skip
def test_a_bad_or_reaching_statement_is_refused(trace: Trace, sql: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("[]")
    with pytest.raises(RingtuneError, match=r"the query failed: (.|\n)*Tables: spans\(rank"):
        query(trace, sql.replace("'trace", f"'{tmp_path}/trace").replace("'stolen", f"'{tmp_path}/stolen"))
    assert not (tmp_path / "stolen.csv").exists()


def test_an_empty_query_says_what_to_write(trace: Trace) -> None:
    for nothing in ("", "  ;", "-- only a comment"):
        with pytest.raises(RingtuneError, match="the query holds no statement; try: select"):
            query(trace, nothing)


def test_parquet_holds_what_the_table_holds(trace: Trace, tmp_path: Path) -> None:
    assert export_parquet(trace, tmp_path / "deep" / "spans.parquet") == len(trace.spans)
    found = duckdb.sql(f"select count(*), sum(duration_ns) from '{tmp_path}/deep/spans.parquet'").fetchall()[0]
    assert found == (len(trace.spans), int(trace.spans.duration_ns.sum()))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["spans.parquet"]
    with pytest.raises(TraceIoError, match="cannot be written"):
        export_parquet(trace, tmp_path / "deep" / "spans.parquet" / "x.parquet")


def test_any_name_survives(tmp_path: Path) -> None:
    names = (('it\'s "quoted"', 1), ("ünï\\", 2), ("line\nbreak", 3), ("", 4))
    trace = merged(generate(Schedule(tensors=names)), tmp_path)
    found = query(trace, "select distinct tensor from spans where stage = 'negotiate'")
    assert sorted(row[0] for row in found.rows) == sorted(name for name, _ in names)


def test_a_simulated_trace_can_be_asked_too() -> None:
    job, truth = simulate(Scenario(ranks=1))
    trace = Trace(job.spans[0], (), (job.part_info(0),), "part")
    assert query(trace, "select count(*) from spans where stage = 'step'").rows == ((len(truth.submit_ns),),)
