"""Tables for a terminal: nothing is cut on a narrow one, and of many ranks only those are listed that stand out."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, Group

from ringtune import layout
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.analysis.tables import new_table, stacked, stragglers_view
from ringtune.timeline.cli import timeline
from tests.timeline.helpers import trace_of
from tests.timeline.scenario import Scenario, simulate

CELL = st.text("abcdefgh0123456789", min_size=1, max_size=14)


def printed(view: object, width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for part in stacked(view, width):  # type: ignore[arg-type]
        console.print(part, highlight=False)
    return out.getvalue()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(2, 14).flatmap(
        lambda columns: st.lists(st.lists(CELL, min_size=columns, max_size=columns), min_size=1, max_size=6)
    ),
    width=st.integers(34, 130),
)
def test_no_cell_is_cut(rows: list[list[str]], width: int) -> None:
    table = new_table("Title", *(f"column {at}" for at in range(len(rows[0]))))
    for row in rows:
        table.add_row(*row)
    lines = printed(Group("before", table), width).splitlines()
    assert max(map(len, lines)) <= width
    words = [line.split() for line in lines]
    for row in rows:
        assert all(any(cell in line for line in words) for cell in row)
        assert sum(line[:1] == row[:1] for line in words) >= len([line for line in lines if "Title" in line])


def test_what_belongs_to_a_cause_stands_with_it() -> None:
    trace, _ = trace_of(Scenario(ranks=4, steps=20, slow_compute={2: 5_000_000}))
    found = stragglers(trace)
    for width in range(60, 140, 4):
        headers = [line for line in printed(stragglers_view(found), width).splitlines() if line.startswith("rank")]
        assert not [line for line in headers if line.split()[1] in ("late", "p")], width


@pytest.mark.parametrize("command", ["summary", "stragglers", "efficiency"])
def test_of_many_ranks_those_are_listed_that_stand_out(command: str, tmp_path: Path) -> None:
    plan = Scenario(ranks=40, steps=6, batches=1, slow_compute={33: 9_000_000})
    simulate(replace(plan, hosts=("host",) * 40))[0].write(layout.timeline_parts(tmp_path / "run"))

    def said(*more: str) -> list[str]:
        return (
            CliRunner()
            .invoke(timeline, [command, str(tmp_path / "run"), *more], catch_exceptions=False)
            .output.splitlines()
        )

    few, every = said(), said("--all")
    assert any(line.split()[:1] == ["33"] for line in few)
    assert "the 8 that stand out, of 40; --all lists all" in [line.strip() for line in few]
    assert len(few) < 75 < len(every) or (command != "summary" and len(every) - len(few) == 31)
    assert not any("--all lists" in line for line in every)


def test_of_two_runs_of_many_ranks_those_are_listed_that_changed_most(tmp_path: Path) -> None:
    plan = Scenario(ranks=40, steps=12, batches=1, hosts=("host",) * 40)
    simulate(plan)[0].write(layout.timeline_parts(tmp_path / "a"))
    simulate(replace(plan, slow_compute={33: 9_000_000}))[0].write(layout.timeline_parts(tmp_path / "b"))

    def said(*more: str) -> tuple[str, list[str]]:
        words = ["diff", str(tmp_path / "a"), str(tmp_path / "b"), *more]
        output = CliRunner().invoke(timeline, words, catch_exceptions=False, env={"COLUMNS": "200"}).output
        return output, [line.split()[2] for line in output.splitlines() if line.split()[:2] == ["compute", "rank"]]

    (few, listed), (every, all_listed) = said(), said("--all")
    assert listed[0] == "33" and len(listed) == 8 and len(all_listed) == 40
    assert "of compute and waiting the 8 that stand out, of 40; --all lists all" in few and "--all lists" not in every
    alike = [int(rank) for rank in all_listed if rank != "33"]
    assert sorted(alike) == [*range(33), *range(34, 40)]
