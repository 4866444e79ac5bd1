"""How wide tables are: as wide as the terminal, or as COLUMNS says where there is none."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from ringtune import layout
from ringtune.timeline.analysis.tables import new_table, stacked
from ringtune.timeline.cli import timeline
from tests.timeline.scenario import Scenario, simulate


@pytest.mark.parametrize(("columns", "tables"), [("", 1), ("120", 2), ("80", 2)])
def test_a_pipe_has_the_columns_that_are_said(columns: str, tables: int, tmp_path: Path) -> None:
    simulate(Scenario(ranks=4, steps=20, slow_compute={2: 5_000_000}))[0].write(layout.timeline_parts(tmp_path))
    done = CliRunner().invoke(timeline, ["stragglers", str(tmp_path)], env={"COLUMNS": columns or None})
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and max(map(len, lines)) <= int(columns or 160)
    titles = [line for line in lines if line.startswith("Last in how many of 20 steps, and by how much (batches")]
    assert len(titles) == tables


@pytest.mark.parametrize("at", [0, 1])
def test_a_long_name_folds_and_no_number_beside_it_is_cut(at: int) -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    columns, row = ["time", "share", "rank"], ["40.1 ms", "5.87 %", "12"]
    columns.insert(at, "first tensor")
    row.insert(at, name)
    table = new_table("Transfers on the path", *columns)
    table.add_row(*row)
    console = Console(width=80, file=StringIO())
    for part in stacked(table, 80):
        console.print(part)
    assert isinstance(console.file, StringIO)
    words = console.file.getvalue().split()
    assert {"40.1", "ms", "5.87", "%", "12"} <= set(words)
    assert any(first + second == name for first in words for second in [*words, ""])
