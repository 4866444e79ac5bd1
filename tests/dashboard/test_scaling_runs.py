"""Scaling of plain runs: groups, weak and strong, predictions and factors, without a browser."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ringtune import layout
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import scaling_runs
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.runs import RunInfo, RunRow, RunsFolder, read_run
from ringtune.dashboard.data.scaling import ScalingSeries
from ringtune.dashboard.data.scaling_runs import Factors, Family
from ringtune.dashboard.figures import scaling as figures
from ringtune.dashboard.pages import scaling as page
from ringtune.dashboard.pages import scaling_series as parts
from ringtune.dashboard.pages.scaling_series import Wish
from ringtune.dashboard.routes import Route
from ringtune.timeline.runs.records import Estimate, ScalingPoint
from ringtune.timeline.spans import Trace, empty_table
from ringtune.timeline.synthetic.generate import Schedule
from ringtune.tuner.model.calibrate import Model
from ringtune.tuner.model.questions import Change, ask
from tests.dashboard.folders import change
from tests.timeline.generated_run import generate_run

MS = 1_000_000


def row(name: str, ranks: int, created: int = 0, steps: int = 100) -> RunRow:
    info = RunInfo(f"{name}-{ranks}-{created}", Path(name), name, "finished", ranks=ranks, created_unix_ns=created)
    return RunRow(info, steps, 1e7)


def family(*ranks: int, kind: str = "", samples: float = 0) -> Family:
    return Family("job", {n: row("job", n).info for n in ranks}, kind, samples)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """One job on 2 and on 4 ranks, the latter slower to communicate; and another job alone."""
    root = tmp_path_factory.mktemp("runs")
    for ranks, communicate in ((2, 3), (4, 5)):
        plan = Schedule(ranks=ranks, steps=12, communicate_ns=communicate * MS)
        run = generate_run(root, f"job{ranks}", plan, tuning=False, scaling=False)
        change(run, name="job", created_unix_ns=ranks)
    generate_run(root, "alone", Schedule(ranks=2, steps=12), tuning=False, scaling=False)
    return Context(RunsFolder(root))


@pytest.fixture(scope="module")
def model(context: Context) -> Model:
    found = context.timelines.model(next(one.info for one in context.folder.rows() if one.info.ranks == 4))
    assert isinstance(found, Model)
    return found


def test_runs_of_one_name_are_a_group_and_the_newest_of_a_size_counts() -> None:
    rows = [row("a", 1, 5), row("a", 1, 3), row("a", 4), row("b", 2), row("a", 8, steps=4), row("a", 0)]
    found = scaling_runs.families(rows)
    assert {of.id: {n: run.created_unix_ns for n, run in of.members.items()} for of in found} == {
        "runs:a": {1: 5, 4: 0},
        "runs:b": {2: 0},
    }


def said(ranks: int, samples: int) -> RunRow:
    known = row("a", ranks)
    return replace(known, info=replace(known.info, id=f"{ranks}x{samples}", step_samples=samples))


def test_runs_that_say_their_samples_are_families_by_what_stays_the_same() -> None:
    rows = [said(1, 32), said(2, 64), said(4, 128), said(2, 32), said(4, 32), said(8, 8 * 99), row("a", 2)]
    found = {one.id: sorted(run.id for run in one.members.values()) for one in scaling_runs.families(rows)}
    assert found == {
        "runs:a:weak-32": ["1x32", "2x64", "4x128"],
        "runs:a:strong-32": ["1x32", "2x32", "4x32"],
        "runs:a:weak-99": ["8x792"],
        "runs:a": ["a-2-0"],
    }


@pytest.mark.parametrize(
    ("labels", "samples"),
    [
        ({"batch": "32"}, 128),
        ({"global-batch": "32"}, 32),
        ({"global_batch": "256", "batch": "1"}, 256),
        ({}, 0),
        ({"batch": "many"}, 0),
        ({"batch": "-1"}, 0),
        ({"batch": "9" * 500}, 0),
        ({"batch": ["1"]}, 0),
    ],
)
def test_tags_say_the_samples_of_a_step(tmp_path: Path, labels: dict[str, object], samples: int) -> None:
    document = {"format": 1, "name": "job", "status": "finished", "size": 4, "labels": labels}
    layout.run_file(tmp_path).write_text(json.dumps(document))
    assert read_run("job", tmp_path).step_samples == samples


def test_weak_and_strong_families_have_rates_in_samples_and_ideals_of_their_own() -> None:
    walls = {1: [10 * MS] * 9, 4: [20 * MS] * 9}
    weak = scaling_runs.series(family(1, 4, kind="weak", samples=32), walls, None, strong=True)
    strong = scaling_runs.series(family(1, 4, kind="strong", samples=64), walls, None)
    assert [point.rate.median for point in weak.points] == pytest.approx([3200, 6400])
    assert [point.rate.median for point in strong.points] == pytest.approx([6400, 3200])
    assert weak.ideal() == ([1, 4], [pytest.approx(3200), pytest.approx(12800)])
    assert strong.ideal() == ([1, 4], [pytest.approx(6400), pytest.approx(25600)])
    efficiency = [one.points[1].efficiency for one in (weak, strong)]
    assert [one.median for one in efficiency if one] == pytest.approx([0.5, 0.125])
    assert (weak.unit, strong.unit) == ("samples/s", "samples/s")
    assert weak.facts == "weak scaling, 32 samples a step and rank, steps of rank 0"
    assert (strong.facts, strong.label) == ("strong scaling, 64 samples a step, steps of rank 0", "job · runs, strong")
    names = [trace.name for trace in figures.rate([weak, strong]).data]
    assert names == ["ideal", "job · runs, weak", "ideal", "job · runs, strong"]


def test_weak_scaling_counts_the_batches_of_all_ranks() -> None:
    walls = {1: [10 * MS] * 20, 4: [12 * MS, 13 * MS] * 10}
    found = scaling_runs.series(family(1, 4), walls, None, strong=False)
    assert [point.rate.median for point in found.points] == pytest.approx([100, 320])
    efficiency = found.points[1].efficiency
    assert efficiency is not None
    assert (efficiency.low, efficiency.median, efficiency.high) == pytest.approx((4 / 5.2, 0.8, 4 / 4.8))
    assert found.ideal() == ([1, 4], [pytest.approx(100), pytest.approx(400)])
    assert found.unit == "batches/s"


def test_strong_scaling_counts_the_steps_of_the_job() -> None:
    walls = {1: [12 * MS] * 20, 4: [4 * MS] * 20}
    found = scaling_runs.series(family(1, 4), walls, None, strong=True)
    assert [point.rate.median for point in found.points] == pytest.approx([1e3 / 12, 250])
    assert found.points[1].efficiency is not None
    assert found.points[1].efficiency.median == pytest.approx(0.75)
    assert found.unit == "steps/s"


def test_without_a_run_of_one_rank_the_ideal_is_what_a_rank_computes(model: Model) -> None:
    found = scaling_runs.series(family(4), {4: [20 * MS] * 9}, model, strong=False)
    assert found.points[0].efficiency is not None
    assert found.points[0].efficiency.median == pytest.approx(model.work.compute_ns / (20 * MS))
    unknown = scaling_runs.series(family(4), {4: [20 * MS] * 9}, None, strong=False)
    assert unknown.points[0].efficiency is not None and unknown.points[0].efficiency.median == pytest.approx(1)


def test_the_prediction_goes_beyond_what_was_measured(model: Model) -> None:
    found = scaling_runs.series(family(2, 8), {2: [9 * MS] * 9, 8: [9 * MS] * 9}, model)
    more = scaling_runs.predicted(found, model).predicted
    assert [point.ranks for point in more] == [4, 8, 16, 32, 64, 128, 256, 512]
    assert more[2].rate.median == pytest.approx(16e9 / ask(model, Change("", ranks=16)).step_ns.value)
    assert all(point.rate.low <= point.rate.median <= point.rate.high for point in more)
    strong = scaling_runs.predicted(replace(found, strong=True, work=64), model).predicted
    halved = ask(model, Change("", ranks=16, compute=4.0)).step_ns.value
    assert strong[2].rate.median == pytest.approx(64e9 / halved)


def record(rate: float, batch: int) -> ScalingSeries:
    points = tuple(ScalingPoint(n, 1, Estimate(n * rate, n * rate, n * rate), None) for n in (1, 4))
    return ScalingSeries("r/x", "r", "x", "x", "images/s", "", 0, points, batch_size=batch)


def test_a_record_is_predicted_by_a_timeline_of_the_same_job_alone(model: Model) -> None:
    assert model.measured_ns is not None
    alike = record(32 * 1e9 / model.measured_ns * 1.1, 32)
    found = scaling_runs.predicted_record(alike, model).predicted
    step = ask(model, Change("")).step_ns.value
    assert found[0].rate.median == pytest.approx(alike.points[1].rate.median)
    assert found[1].rate.median / found[0].rate.median == pytest.approx(
        2 * step / ask(model, Change("", ranks=8)).step_ns.value
    )
    assert scaling_runs.predicted_record(record(1.0, 32), model).predicted == ()
    assert scaling_runs.predicted_record(replace(alike, batch_size=0), model).predicted == ()


def test_the_page_of_a_run_shows_its_own_group_and_the_other_those_with_several_sizes(context: Context) -> None:
    by_name = {one.info.name: one.info.id for one in context.folder.rows()}
    everywhere = parts.groups(context, Route("scaling"))
    assert {name: sorted(found.members) for name, found in everywhere.items()} == {"runs:job": [2, 4]}
    own = parts.groups(context, Route("scaling", by_name["alone"]))
    assert {name: sorted(found.members) for name, found in own.items()} == {"runs:alone": [2]}


def test_series_predictions_and_factors_come_together(context: Context) -> None:
    route, wish = Route("scaling"), Wish()
    known = parts.groups(context, route)
    (series,) = parts.with_predictions(context, parts.measured(context, route).series, known, wish)
    assert len(series.points) == 2 and len(series.predicted) == 7
    (plain,) = parts.with_predictions(context, [replace(series, predicted=())], known, Wish(predict=False))
    assert plain.predicted == ()
    found, said = parts.factors(context, [series], known)
    assert [one.label for one in found] == ["job · 2", "job · 4"] and said == []
    assert found[0].transfer > found[1].transfer
    assert page.address("/scaling", parts.measured(context, route), [series.id], Wish(strong=True, predict=False)) == {
        "path": "/scaling",
        "search": "scaling=strong&predict=0",
    }


def test_factors_multiply_and_their_bars_reach_a_hundred() -> None:
    found = [Factors("a", 0.9, 0.8, 0.5, None), Factors("b", 0.9, 0.8, 0.5, 0.5)]
    assert found[1].efficiency == pytest.approx(0.18)
    figure = figures.factors(found)
    heights = {trace.name: list(trace.y) for trace in figure.data}
    assert heights["Efficiency"] == pytest.approx([36, 18])
    assert heights["More computing"] == pytest.approx([0, 50])
    assert [sum(column) for column in zip(*heights.values(), strict=True)] == pytest.approx([100, 100])


def test_a_rank_of_a_strong_job_is_to_compute_its_share(context: Context) -> None:
    runs = {one.info.ranks: one.info for one in context.folder.rows() if one.info.name == "job"}
    weak, strong = (context.timelines.factors(runs[4], runs[2], strong=strong) for strong in (False, True))
    assert weak is not None and strong is not None and weak.computation is not None
    assert strong.computation == pytest.approx(weak.computation / 4)
    assert math.isclose(weak.computation, 1.0)


def test_a_trace_without_waits_has_no_factors() -> None:
    with pytest.raises(Unreadable, match="no computing in the trace"):
        scaling_runs.factors("x", Trace(empty_table(), (), (), "merged", "job"))


def test_a_step_log_of_nonsense_is_no_point(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "job", Schedule(ranks=2, steps=12), scaling=False)
    lines = [json.dumps({"step": n, "begin_ns": 5, "end_ns": 5}) for n in range(20)]
    layout.step_log(run, 0).write_text("\n".join(lines) + "\n")
    context = Context(RunsFolder(tmp_path))
    assert parts.groups(context, Route("scaling", context.folder.rows()[0].info.id)) == {}
