from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringtune.dashboard import theme
from ringtune.dashboard.data import scaling, steps, tuning
from ringtune.dashboard.data.runs import read_run
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.figures import scaling as scaling_figures
from ringtune.dashboard.figures import steps as step_figures
from ringtune.dashboard.figures import timeline as timeline_figures
from ringtune.dashboard.figures import tuning_plane, tuning_trials
from ringtune.dashboard.theme import PHASES, Scheme
from tests.dashboard.folders import HOSTILE
from tests.dashboard.test_timeline_data import built, table


@pytest.fixture(scope="module")
def index(runs: dict[str, Path]) -> TimelineIndex:
    return trace.load(runs["done"], trace.sources(runs["done"]))


def named(figure: Any) -> dict[str, Any]:
    return {one.name: one for one in figure.data}


def test_step_times_have_a_line_a_rank_and_a_unit(runs: dict[str, Path]) -> None:
    figure = step_figures.step_times(steps.lines(steps.StepReader(runs["done"]).read()))
    assert [one.name for one in figure.data] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert figure.layout.yaxis.title.text == "Step time (ms)"
    assert 14 < min(figure.data[0].y) < max(figure.data[0].y) < 25


def test_the_breakdown_adds_up_to_the_step(runs: dict[str, Path]) -> None:
    parts = steps.StepReader(runs["done"]).read().parts
    figure = step_figures.breakdown(parts)
    totals = [sum(bar.x[rank] for bar in figure.data) for rank in range(4)]
    assert totals == pytest.approx([part.wall_ns / 1e6 for part in parts])
    assert figure.layout.barmode == "stack"


def test_phases_have_their_colours_everywhere(runs: dict[str, Path], index: TimelineIndex) -> None:
    bars = named(step_figures.phases(steps.StepReader(runs["done"]).read().parts))
    lanes = named(timeline_figures.timeline(index, index.view(Query())))
    assert bars["Communicate"].marker.color == lanes["Communicate"].marker.color == PHASES["communicate"].color
    assert bars["Wait"].marker.color == lanes["Wait"].marker.color == theme.EXPOSED_COLOR


def test_the_timeline_draws_every_shape_once(index: TimelineIndex) -> None:
    view = index.view(Query(index.step_window(2)))
    figure = timeline_figures.timeline(index, view)
    bars = [one for one in figure.data if one.type == "bar"]
    assert sum(len(bar.x) for bar in bars) == len(view.shapes)
    assert [bar.name for bar in bars] == ["Step", "Negotiate", "Queue", "Copy in", "Communicate", "Copy out", "Wait"]
    assert figure.layout.xaxis.range == (view.window.begin_ns / 1e6, view.window.end_ns / 1e6)
    assert figure.layout.yaxis.ticktext[:2] == ("Step", "Negotiate")


def test_the_hover_of_a_span_has_all_facts(index: TimelineIndex) -> None:
    figure = timeline_figures.timeline(index, index.view(Query(index.step_window(1))))
    text = next(text for text in named(figure)["Communicate"].hovertext if "step 1" in text)
    for fact in (
        "RING_ALLREDUCE",
        "Communicate",
        "rank ",
        "tensor layer",
        " ms",
        "MiB",
        "/s",
        "batch ",
        "knobs version 1",
    ):
        assert fact in text


def test_knob_changes_are_marked(index: TimelineIndex) -> None:
    assert len(named(timeline_figures.timeline(index, index.view(Query())))["knobs"].x) == 8


def test_a_search_dims_the_rest(index: TimelineIndex) -> None:
    view = index.view(Query(index.step_window(1), search="layer1.0.conv1.weight"))
    opacity = named(timeline_figures.timeline(index, view))["Copy in"].marker.opacity
    assert sorted(set(opacity)) == [timeline_figures._FAINT, 1.0]


def test_html_in_names_is_written_out() -> None:
    spans = table([(0, 10), (20, 30)])
    object.__setattr__(spans, "names", (HOSTILE,))
    object.__setattr__(spans, "tensors", (HOSTILE,))
    index = built(spans)
    text = timeline_figures.timeline(index, index.view(Query())).to_json()
    assert "<img" not in text and "<script" not in text and "&lt;img" in text


def test_tuning_shows_trials_the_default_and_the_best(runs: dict[str, Path]) -> None:
    past = tuning.data(read_run("x", runs["done"]))
    figure = named(tuning_trials.trials(past))
    names = {
        "default's level",
        "default",
        "from the last session",
        "start point",
        "sampler",
        "confirmation",
        "best confirmed",
    }
    assert set(figure) == names
    drawn = sum(len(figure[name].x) for name in names - {"default's level", "best confirmed"})
    assert drawn == len(past.trials)
    assert min(figure["best confirmed"].y) == figure["best confirmed"].y[-1]


def test_the_plane_marks_default_and_kept(runs: dict[str, Path]) -> None:
    figure = named(tuning_plane.plane(tuning.data(read_run("x", runs["done"]))))
    assert figure["default"].x == (64 << 20,) and figure["kept"].y == (0.28,)
    assert len(figure["trials"].x) == 24


def test_scaling_shows_measured_and_ideal_with_intervals(runs: dict[str, Path]) -> None:
    series = scaling.data([read_run("x", runs["done"])]).series
    figure = scaling_figures.rate(series)
    assert [one.name for one in figure.data] == ["ideal", "resnet · resnet50", "ideal", "vgg16 · resnet50"]
    assert figure.data[0].y[-1] == 41.0 * 8
    assert figure.layout.yaxis.title.text == "Throughput (images/s)"
    assert scaling_figures.efficiency(series).data[0].y[0] == pytest.approx(100)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_of_nothing_are_empty_but_whole(scheme: Scheme) -> None:
    nothing = tuning.history([])
    index = built(table([]))
    for figure in (
        step_figures.step_times([], scheme),
        step_figures.breakdown([], scheme),
        step_figures.phases([], scheme),
        tuning_trials.trials(nothing, scheme),
        tuning_plane.plane(nothing, scheme),
        scaling_figures.rate([], scheme),
        scaling_figures.efficiency([], scheme),
        timeline_figures.timeline(index, index.view(Query(Window(0, 10))), scheme),
    ):
        assert figure.layout.template.layout.font.color == theme.INKS[scheme].text


def test_an_answer_of_the_timeline_is_small(index: TimelineIndex) -> None:
    assert len(timeline_figures.timeline(index, index.view(Query())).to_json()) < 1_000_000
