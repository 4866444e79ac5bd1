"""Tables of results in notebooks: HTML without a library, DataFrames with pandas."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringtune.errors import RingtuneError
from ringtune.timeline import compare, load, open_run
from ringtune.timeline.frames import SHOWN_ROWS, Tabular
from ringtune.timeline.synthetic.generate import Schedule
from tests.timeline.generated_run import generate_run


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tabular]:
    run: Path = generate_run(tmp_path_factory.mktemp("frames"), "x", Schedule(ranks=2, steps=6))
    trace = load(run)
    return {"spans": trace.spans, "steps": open_run(run).steps[1], "changes": compare(trace, trace)}


@pytest.mark.parametrize("name", ["spans", "steps", "changes"])
def test_a_table_has_a_row_for_every_row_and_shows_the_first(name: str, tables: dict[str, Tabular]) -> None:
    table = tables[name]
    assert {len(column) for column in table.columns().values()} == {table.row_count()}
    assert {len(column) for column in table.columns(2).values()} == {2}
    shown = table._repr_html_()
    assert shown.count("<tr>") == 1 + min(table.row_count(), SHOWN_ROWS)
    assert (f"and {table.row_count() - SHOWN_ROWS:,} more rows" in shown) == (table.row_count() > SHOWN_ROWS)


def test_names_of_tensors_are_no_html() -> None:
    class Hostile(Tabular):
        def row_count(self) -> int:
            return 1

        def columns(self, most: int | None = None) -> dict[str, list[object]]:
            return {"<b>": ["<script>"], "n": [None], "m": [1234567], "x": [0.123456789]}

    shown = Hostile()._repr_html_()
    assert "<script>" not in shown and "<b>" not in shown and "1,234,567" in shown and "0.1235" in shown


def test_without_pandas_it_is_named(tables: dict[str, Tabular], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RingtuneError, match="pip install pandas"):
        tables["spans"].to_pandas()


def test_frames_hold_the_columns(tables: dict[str, Tabular]) -> None:
    pytest.importorskip("pandas", reason="pandas is optional and not installed")
    spans, steps, changes = (tables[name].to_pandas() for name in ("spans", "steps", "changes"))
    assert len(spans) == tables["spans"].row_count() and set(spans["stage"]) >= {"step", "communicate"}
    assert steps["wall_ns"].tolist() == (steps["end_ns"] - steps["begin_ns"]).tolist() and set(steps["rank"]) == {1}
    assert changes["verdict"].tolist() == len(changes) * ["same"]
