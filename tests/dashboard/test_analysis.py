"""What the Stragglers and Communication pages show, without a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringtune.dashboard.data.analysis import Analysis, analyse, open_analysis, save
from ringtune.dashboard.data.lateness import COLUMN_LIMIT, ROW_LIMIT, cell_at, late_map, late_ranks, place_of
from ringtune.dashboard.data.timeline import prepare, store, trace
from ringtune.dashboard.figures.stragglers import clipped_words, late_heat
from ringtune.dashboard.pages.stragglers import zoomed
from ringtune.dashboard.pages.stragglers_verdict import sentences, verdict
from ringtune.timeline.spans import Trace, concatenate
from tests.timeline.scenario import Scenario, simulate


@pytest.fixture(scope="module")
def done(runs: dict[str, Path]) -> Analysis:
    return analyse(*trace.read_all(runs["done"], trace.sources(runs["done"])))


def of_rows(ranks: int, steps: int, rows: Sequence[tuple[int, int, int, int]]) -> Analysis:
    """An analysis that knows (step, cause, rank, lateness) and steps of 10 ns."""
    late = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    number = np.arange(steps)
    columns = {"late_step": late[0], "late_cause": late[1].astype(np.uint8), "late_rank": late[2], "late_ns": late[3]}
    columns |= {"step": number, "step_begin_ns": number * 10, "step_end_ns": number * 10 + 10}
    return Analysis({"summary": {"ranks": [{"rank": rank} for rank in range(ranks)]}, "stragglers": None}, columns)


def test_the_late_rank_of_the_schedule_is_the_only_row_that_glows(done: Analysis) -> None:
    found = late_map(done)
    assert found is not None and found.mean_ns.shape == (4, 60)
    assert np.all(found.mean_ns[3] == 900_000) and np.all(found.mean_ns[:3] == 0)
    assert late_map(done, "network").late_steps.sum() == 0  # type: ignore[union-attr]
    assert sentences(done) == [
        "6.0 % of the job (54.0 ms) was lost to rank 3 always (in 60 of 60 steps), by compute: look at rank 3 in step "
        "0."
    ]


def test_a_verdict_is_green_only_where_no_lateness_costs_a_percent() -> None:
    def alert(plan: Scenario) -> Any:
        job, _ = simulate(plan)
        parts = tuple(job.part_info(rank) for rank in job.spans)
        found = analyse(Trace(concatenate(list(job.spans.values())), (), parts, "merged", "job"))
        return verdict(found, lambda step, rank: f"{step}/{rank}")

    colors = {"one stall": alert(Scenario(steps=40, pauses={(2, 17): 900_000_000}))}
    colors |= {"turns": alert(Scenario(steps=40, jitter_ns=8_000_000)), "even": alert(Scenario(steps=40))}
    assert {name: one.color for name, one in colors.items()} == {
        "one stall": "orange", "turns": "yellow", "even": "teal",
    }  # fmt: skip
    said = colors["one stall"].children[0].children
    assert "lost to rank 2 in 1 stall (step 17), by compute" in said[0] and said[-1].href == "17/2"


def test_each_cause_shows_the_rank_that_is_slow_by_it() -> None:
    plan = Scenario(ranks=4, steps=40, jitter_ns=1000, slow_compute={1: 700_000}, slow_link={2: 290_000})
    job, _ = simulate(plan)
    parts = tuple(job.part_info(rank) for rank in job.spans)
    found = analyse(Trace(concatenate(list(job.spans.values())), (), parts, "merged", "job"))
    assert [(one.rank, one.verdict) for one in late_ranks(found) if one.verdict] == [
        (1, ("compute",)),
        (2, ("network",)),
    ]
    compute, network = late_map(found, "compute"), late_map(found, "network")
    assert compute is not None and network is not None
    assert compute.mean_ns.sum(axis=1).argmax() == 1 and network.mean_ns.sum(axis=1).argmax() == 2


def test_many_steps_and_ranks_share_cells_that_lead_to_their_worst_step() -> None:
    steps, ranks = 4 * COLUMN_LIMIT - 1, 2 * ROW_LIMIT
    found = of_rows(ranks, steps, [(8, 0, 5, 100), (9, 1, 4, 700), (9, 0, 4, 300), (steps - 1, 2, ranks - 1, 90)])
    drawn = late_map(found)
    assert drawn is not None and drawn.mean_ns.shape == (ROW_LIMIT, COLUMN_LIMIT)
    assert drawn.steps[2] == (8, 11) and drawn.steps[-1] == (steps - 3, steps - 1) and drawn.ranks[2] == (4, 5)
    assert drawn.mean_ns[2, 2] == (100 + 700) / 4  # of two causes in a step the stronger one counts
    assert (drawn.late_steps[2, 2], drawn.worst_step[2, 2], drawn.worst_rank[2, 2]) == (2, 9, 4)
    assert drawn.mean_ns[-1, -1] == 30
    assert cell_at(drawn, 9.5, "ranks 4–5") == (9, 4)
    assert cell_at(drawn, 9.5, "ranks 6–7") == (8, 6)
    assert cell_at(drawn, -5, "ranks 4–5") is cell_at(drawn, 9, "rank 4") is None
    near = late_map(found, "compute", (8, 9))
    assert near is not None and near.steps == ((8, 8), (9, 9)) and near.recorded == (0, steps - 1)
    assert near.mean_ns[2].tolist() == [100, 300]
    assert late_map(found, steps=(10**6, 10**7)).steps[0][0] == 0  # type: ignore[union-attr]
    assert late_map(of_rows(2, 0, [])) is None


def test_a_cell_leads_to_its_step_and_the_late_rank_among_others() -> None:
    place = place_of(of_rows(10, 5, []), 3, 7)
    assert place is not None and place.ranks == (0, 1, 2, 7)
    assert place.window.begin_ns < 30 < 40 < place.window.end_ns
    small = place_of(of_rows(3, 5, []), 3, 2)
    assert small is not None and small.ranks == ()
    assert place_of(of_rows(3, 5, []), 9, 2) is None


@pytest.mark.parametrize(
    ("event", "steps"),
    [
        ({"xaxis.range[0]": 9.6, "xaxis.range[1]": 19.8}, [10, 19]),
        ({"xaxis.range": [-3, 4.2]}, [0, 4]),
        ({"xaxis.range[0]": 4.1, "xaxis.range[1]": 4.2}, [5, 5]),
        ({"xaxis.autorange": True}, None),
        ({"autosize": True}, [1, 2]),
        (None, [1, 2]),
    ],
)
def test_a_zoom_of_the_map_is_whole_steps(event: dict[str, Any] | None, steps: list[int] | None) -> None:
    assert zoomed(event, [1, 2]) == steps


def test_an_analysis_comes_back_from_the_disk_as_it_was(done: Analysis, tmp_path: Path) -> None:
    assert open_analysis(tmp_path) is None
    save(tmp_path, done)
    back = open_analysis(tmp_path)
    assert back is not None and back.document == done.document and back.problems == done.problems
    assert {name: column.tolist() for name, column in back.columns.items()} == {
        name: column.tolist() for name, column in done.columns.items()
    }
    (tmp_path / "analysis.json").write_text("{")
    assert open_analysis(tmp_path) is None


def test_a_large_timeline_is_analysed_beforehand(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: Analysis
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told: list[str] = []
    folder = store.place_of(runs["done"], ())
    prepare.prepare(runs["done"], folder, lambda _, words: told.append(words))
    found = open_analysis(folder)
    assert found is not None and found.document == done.document
    assert store.open_index(folder) is not None and told[-1] == "comparing the ranks"


def test_one_rank_alone_says_why_there_is_nothing_to_compare(tmp_path: Path) -> None:
    job, _ = simulate(Scenario(ranks=1, steps=3))
    found = analyse(Trace(job.spans[0], (), (), "merged", "job"))
    assert found.document["stragglers"] is None and "comparing ranks" in found.document["why_not"]
    drawn = late_map(found)
    assert drawn is not None and drawn.late_steps.sum() == 0
    assert late_heat(drawn).layout.xaxis.title.text == "Step"


def test_a_map_says_where_its_colours_end() -> None:
    rows = [(step, 0, 0, 1_000_000) for step in range(120)]
    maps = [late_map(of_rows(2, 120, found)) for found in (rows, [*rows[:-1], (119, 0, 0, 10**9)])]
    assert maps[0] is not None and maps[1] is not None
    even, clipped = (late_heat(one).data[0] for one in maps)
    assert (even.zmax, clipped.zmax) == (1.0, 1.0)
    assert (even.colorbar.ticktext, clipped.colorbar.ticktext) == (None, ("0", "≥ 1"))
    said = "; colours end at 1.00 ms, the worst cell has 1.00 s"
    assert [clipped_words(one) for one in maps if one is not None] == ["", said]
    grown = "; colours end at 500 µs, the worst cell has 1.00 ms"  # since the map was drawn
    assert (clipped_words(maps[0], 5e5), clipped_words(maps[0], 1e6)) == (grown, "")


def test_the_map_of_nothing_is_empty_but_whole() -> None:
    assert len(late_heat(None, "dark").data) == 0
    assert len(late_heat(late_map(of_rows(2, 3, [])), "dark").data) == 1


def test_a_map_of_a_long_run_is_a_small_answer() -> None:
    rows = [(step, 0, step % 500, 1000 + step) for step in range(100_000)]
    assert len(late_heat(late_map(of_rows(500, 100_000, rows))).to_json()) < 1_000_000
