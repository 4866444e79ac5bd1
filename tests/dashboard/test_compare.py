"""Runs side by side: samples, differences, spreads and settings, without a browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ringtune import layout
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import compare
from ringtune.dashboard.data.compare import Contrast
from ringtune.dashboard.data.runs import RunInfo, RunsFolder
from ringtune.dashboard.data.steps import Steps, rank_steps
from ringtune.dashboard.figures import compare as figures
from ringtune.dashboard.pages import compare as page
from ringtune.dashboard.pages.compare_tables import changes_table
from ringtune.dashboard.pages.runs import compare_link
from ringtune.timeline.analysis.comparison import Change
from ringtune.timeline.synthetic.generate import Schedule
from tests.dashboard.folders import change
from tests.timeline.generated_run import generate_run

MS = 1_000_000


def steps(*walls: list[int], waits: int = 1) -> Steps:
    """Ranks with these step times in ms, the first of which is warm-up."""
    ranks = []
    for rank, own in enumerate(walls):
        ends = np.cumsum(own)
        rows = [
            {"step": n, "begin_ns": (end - wall) * MS, "end_ns": end * MS, "wait_ns": waits * MS, "copy_ns": MS}
            for n, (wall, end) in enumerate(zip(own, ends.tolist(), strict=True))
        ]
        ranks.append(rank_steps(rank, rows))
    return Steps(tuple(ranks))


def info(name: str, **more: object) -> RunInfo:
    return RunInfo(name, Path(name), name, "finished", **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    root = tmp_path_factory.mktemp("runs")
    generate_run(root, "before", Schedule(ranks=2, steps=12))
    generate_run(root, "after", Schedule(ranks=2, steps=9, compute_ns=13 * MS))
    return Context(RunsFolder(root))


def pair(context: Context) -> tuple[RunInfo, RunInfo]:
    found = {row.info.name: row.info for row in context.folder.rows()}
    return found["before"], found["after"]


def test_a_step_ends_with_its_slowest_rank_and_warm_up_is_left_out() -> None:
    found = compare.step_samples(steps([90, 10, 12, 11], [80, 11, 10, 14], waits=2))
    assert found["step", "step"].tolist() == [11 * MS, 11 * MS, 13 * MS]  # ends: 11, 22 and 35
    assert found["compute", "rank 1"].tolist() == [9 * MS, 8 * MS, 12 * MS]
    assert found["waiting", "rank 0"].tolist() == [2 * MS] * 3
    assert found["stage", "copy"].tolist() == [MS] * 3


def test_a_pause_counts_once_though_the_others_wait_for_it_in_their_next_step() -> None:
    """Rank 0 pauses for 500 ms after its gradients were sent; 20 steps of 10 ms took 700 ms."""
    first, second = [90, *[10] * 20], [90, *[10] * 20]
    first[8], second[9] = 510, 510
    step = compare.step_samples(steps(first, second))["step", "step"]
    assert step.sum() == 700 * MS and sorted(step.tolist()) == [10 * MS] * 19 + [510 * MS]


def test_only_steps_that_all_ranks_have_ended_count() -> None:
    found = compare.step_samples(steps([90, 10, 12, 11], [80, 11, 10]))
    assert found["step", "step"].tolist() == [11 * MS, 11 * MS]
    assert compare.step_samples(Steps(())) == {}


def test_step_logs_tell_what_got_slower() -> None:
    found = compare.of_logs(steps([90, *[10, 11] * 20]), steps([90, *[14, 15] * 30]))
    assert found is not None and found.source == "step logs" and found.steps == (40, 60)
    assert found.step is not None
    assert (found.step.difference_ns, found.step.verdict) == (4 * MS, "slower")
    assert {c.what: c.verdict for c in found.changes if c.kind == "compute"} == {"rank 0": "slower"}
    assert found.changes[-1].verdict == "same"


def test_one_step_is_too_few_to_compare() -> None:
    assert compare.of_logs(steps([90, 10]), steps([90, 10, 11])) is None
    assert compare.of_logs(Steps(()), steps([90, 10, 11])) is None


def test_timelines_are_preferred_and_kept(context: Context) -> None:
    first, second = pair(context)
    found = context.timelines.contrast(first, second)
    assert found is not None and found.source == "timelines" and found.steps == (11, 8)
    changes = {change.what: change for change in found.changes if change.kind == "compute"}
    assert {what: change.difference_ns for what, change in changes.items()} == {"rank 0": 3 * MS, "rank 1": 3 * MS}
    assert context.timelines.contrast(first, second) is found
    back = context.timelines.contrast(second, first)
    assert back is not None and back.step is not None and back.step.verdict == "faster"


def test_without_a_timeline_step_logs_are_compared(tmp_path: Path) -> None:
    for name in ("before", "after"):
        run = generate_run(tmp_path, name, Schedule(ranks=2, steps=12))
        for part in layout.timeline_parts(run).iterdir():
            part.unlink()
    context = Context(RunsFolder(tmp_path))
    found = context.timelines.contrast(*pair(context))
    assert found is not None and found.source == "step logs"
    assert {change.verdict for change in found.changes} == {"same"}
    assert page.stills(context, pair(context), None, "light") is None


def test_both_timelines_are_drawn_on_the_same_scale(context: Context) -> None:
    found = page.stills(context, pair(context), 5, "light")
    assert found is not None
    ranges = [one.figure.layout.xaxis.range for one in found]
    assert ranges[0][1] - ranges[0][0] == pytest.approx(ranges[1][1] - ranges[1][0])
    assert [list(one.figure.layout.xaxis.ticktext)[:2] for one in found] == [["0", "5"], ["0", "5"]]
    assert "timeline?from=" in found[0].head.href and "step 5" in found[0].head.children
    gone = page.stills(context, pair(context), 10, "light")  # the second run has no step 10
    assert gone is not None and gone[0].figure is not None and gone[1].figure is None


def test_spreads_share_their_bins_and_outliers_do_not_stretch_them() -> None:
    calm, wild = np.linspace(10, 12, 200) * MS, np.append(np.linspace(11, 13, 199), 500) * MS
    first, second = compare.spreads([("a", calm), ("none", np.zeros(0)), ("b", wild)])
    assert (first.edges_ns == second.edges_ns).all() and first.edges_ns[-1] < 15 * MS
    assert first.share.sum() == pytest.approx(1) and second.share.sum() + second.beyond == pytest.approx(1)
    assert second.beyond == pytest.approx(1 / 200)
    assert compare.spreads([]) == []
    assert len(figures.spreads([first, second]).data) == 2


def test_what_was_set_differently_leaves_out_what_differs_in_every_job() -> None:
    first = info(
        "a", config={"RINGTUNE_JOB": "1", "RINGTUNE_MASTER": "a:1", "X": "1"}, knobs={"fusion_bytes": 1 << 20}, ranks=2
    )
    second = info(
        "b", config={"RINGTUNE_JOB": "2", "RINGTUNE_MASTER": "a:2", "Y": "2"}, knobs={"fusion_bytes": 2 << 20}, ranks=2
    )
    assert compare.settings(first, second) == [
        ("Knob fusion_bytes", "1 MiB", "2 MiB"),
        ("X", "1", "–"),
        ("Y", "–", "2"),
    ]


def test_several_runs_stand_beside_the_first() -> None:
    samples = [compare.step_samples(steps([90, *[n, n + 1] * 10])) for n in (10, 14)]
    found = compare.beside([(info("a"), samples[0]), (info("b"), samples[1]), (info("c"), {})])
    assert [(one.run.name, one.steps, one.mean_ns) for one in found[:2]] == [("a", 20, 10.5 * MS), ("b", 20, 14.5 * MS)]
    assert found[0].change is None and found[2].change is None
    assert found[1].change is not None and found[1].change.difference_ns == 4 * MS


def test_the_address_names_the_runs() -> None:
    asked = {"a": "x/1", "b": "y", "also": ["p,q"], "step": 7}
    assert page.address("/compare", asked)["search"] == "a=x%2F1&b=y&also=p%252Cq&step=7"
    assert page.address(None, {"a": None, "b": None, "also": [], "step": ""}) == {"path": "/", "search": ""}


def test_marked_runs_are_compared_with_the_oldest() -> None:
    rows = [{"id": f"run {n}", "created": f"2026-01-0{n}"} for n in (3, 1, 2)]
    assert compare_link(rows, "/p/").href == "/p/compare?a=run+1&b=run+2&also=run%25203"
    assert "Mark two" in compare_link(rows[:1], "/").children


def test_a_run_is_shown_once(context: Context) -> None:
    first, second = (run.id for run in pair(context))
    found = page.chosen(context, [first, second, first, None, "gone", second])
    assert [run and run.id for run in found] == [first, second, None, None]


def test_settings_of_a_run_folder_are_texts(tmp_path: Path) -> None:
    runs = [generate_run(tmp_path, name, Schedule(ranks=2, steps=3)) for name in ("before", "after")]
    change(runs[0], config={"<b>": "<i>"})
    context = Context(RunsFolder(tmp_path))
    rows = compare.settings(*pair(context))
    assert ("<b>", "<i>", "–") in rows


@pytest.mark.parametrize("word", ["same", "unclear", "slower"])
def test_what_is_unclear_is_explained_below_the_table(word: str) -> None:
    change = Change("step", "", 10.0, 11.0, 1.5, 1, 2, 0.06, word)
    found = Contrast((change,), (9, 9), "step logs", ((), ()))
    assert ("Unclear: the interval leaves 0 out" in str(changes_table(found))) == (word == "unclear")
