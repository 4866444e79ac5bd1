"""The table of runs: its figures from the ends of step logs, and groups by tag."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune import layout
from ringtune.dashboard.data import run_figures, tuning
from ringtune.dashboard.data.run_figures import FiguresReader, of_steps
from ringtune.dashboard.data.runs import RunsFolder, read_run
from ringtune.dashboard.pages.runs import columns, grouped, groups, table_rows, tag_names
from ringtune.timeline.synthetic.generate import Schedule
from tests.dashboard.folders import change
from tests.timeline.generated_run import generate_run

MS = 10**6


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return generate_run(tmp_path, "x", Schedule(ranks=3, steps=6), tuning=False, scaling=False)


def test_who_computes_longest_is_late_and_the_others_waiting_is_apart_from_transfers() -> None:
    # 10 ms a step: all wait 1 ms for the links, and for rank 2, which computes 9 ms and not 6.
    ranks = {rank: {step: (10 * MS, (1 if rank == 2 else 4) * MS) for step in range(5)} for rank in (0, 1, 2)}
    ranks[0][0] = (9000 * MS, 9000 * MS)  # the start of the job
    found = of_steps(ranks)
    assert (found.late_rank, found.best_ns) == (2, 10 * MS)
    assert found.efficiency == pytest.approx(1 - 9 / 30) and found.waiting == pytest.approx(6 / 30)


def test_even_ranks_have_none_late_and_one_rank_waits_for_nobody() -> None:
    even = of_steps({rank: {1: (10 * MS, 2 * MS), 2: (8 * MS, 2 * MS)} for rank in (0, 1)})
    assert (even.late_rank, even.waiting, even.best_ns) == (-1, 0, 8 * MS)
    alone = of_steps({0: {1: (10 * MS, 2 * MS)}})
    assert alone.late_rank == -1 and math.isnan(alone.waiting) and alone.efficiency == pytest.approx(0.8)


@pytest.mark.parametrize("ranks", [{}, {0: {}}, {0: {0: (5, 1)}}, {0: {1: (5, 1)}, 1: {2: (5, 1)}}, {0: {1: (0, 0)}}])
def test_without_common_steps_nothing_is_said(ranks: dict[int, dict[int, tuple[int, int]]]) -> None:
    found = of_steps(ranks)
    assert math.isnan(found.efficiency) and math.isnan(found.best_ns) and found.late_rank == -1


@given(st.lists(st.lists(st.tuples(st.integers(1, 10**10), st.integers(0, 2 * 10**10)), min_size=4, max_size=4),
                min_size=1, max_size=5))  # fmt: skip
def test_shares_are_shares(rows: list[list[tuple[int, int]]]) -> None:
    found = of_steps({rank: dict(enumerate(own, start=1)) for rank, own in enumerate(rows)})
    assert 0 <= found.efficiency <= 1 + 1e-12
    assert math.isnan(found.waiting) if len(rows) == 1 else -1e-12 <= found.waiting <= 1 - found.efficiency + 1e-12
    assert found.best_ns == np.array(rows)[:, :, 0].max(axis=0).min()


def test_figures_follow_the_logs_of_a_run(run: Path) -> None:
    reader, info = FiguresReader(), read_run("x", run)
    first = reader.of(info)
    assert reader.of(info) is first and 0 < first.efficiency < 1
    with layout.step_log(run, 0).open("a") as log:
        log.write(json.dumps({"step": 999, "begin_ns": 0, "end_ns": 5, "wait_ns": 1}) + "\nnot JSON\n[]\n")
    assert reader.of(info) is not first


def test_the_best_step_is_confirmed_by_tuning_only_without_steps(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "x", Schedule(ranks=3, steps=6), scaling=False)
    info = read_run("x", run)
    _, kept = tuning.best_confirmed(tuning.data(info))
    assert kept is not None
    logs = {rank: layout.step_log(run, rank) for rank in range(3)}
    rows = [[json.loads(line) for line in log.read_text().splitlines()[1:]] for log in logs.values()]
    slowest = [max(one["end_ns"] - one["begin_ns"] for one in step) for step in zip(*rows, strict=True)]
    assert FiguresReader().of(info).best_ns == min(slowest)
    for log in logs.values():
        log.unlink()
    assert FiguresReader().of(info).best_ns == kept[-1]


def test_logs_of_many_ranks_are_not_read_for_a_table(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_figures, "RANK_LIMIT", 1)
    assert math.isnan(FiguresReader().of(read_run("x", run)).efficiency)


def test_rows_have_notes_apart_from_tags_and_numbers_that_json_knows(runs: dict[str, Path], root: Path) -> None:
    folder = RunsFolder(root)
    rows = {row["name"]: row for row in table_rows(folder.rows(), FiguresReader().of, "/")}
    json.dumps(rows, allow_nan=False)
    done = rows["resnet50"]
    assert (done["late_rank"], done["late_rank_text"], done["best_ns_text"][-2:]) == (3, "3", "ms")
    assert rows["just-started"]["efficiency"] is None and rows["just-started"]["efficiency_text"] == "–"
    assert rows["just-started"]["command"] == "python train.py"
    assert tag_names(folder.rows()) == ["batch", "model"]


def test_a_note_is_no_tag(run: Path) -> None:
    change(run, labels={"note": "with pinned memory", "batch": 32})
    info = read_run("x", run)
    assert (info.notes, info.tags) == ("with pinned memory", ("batch=32",))


def test_runs_are_grouped_by_a_tag() -> None:
    def row(name: str, tags: str, step_ns: float | None, efficiency: float | None) -> dict[str, object]:
        return {"name": name, "tags": tags, "step_ns": step_ns, "step_ns_text": "?", "efficiency": efficiency}

    rows = [row("a", "model=x, batch=8", 5.0, 0.5), row("b", "model=x, tuned", 4.0, 0.7), row("c", "", None, None)]
    assert [one["group"] for one in grouped(rows, "model")] == ["x", "x", "–"]
    assert [one["group"] for one in grouped(rows, "tuned")] == ["–", "yes", "–"]
    assert [one["group"] for one in grouped(rows, "name")] == ["a", "b", "c"]
    assert groups(grouped(rows, "model")) == [["x", "2", "?", "b", "60.0 %"], ["–", "1", "–", "–", "–"]]
    assert columns("model")[0]["sort"] == "asc" and columns(None)[0]["hide"]
