"""How wide tables are: as wide as the terminal, or as COLUMNS says where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune import layout
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
