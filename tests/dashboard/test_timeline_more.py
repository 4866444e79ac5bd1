"""What lies over the timeline: the critical path, a followed batch, the minimap; and the page's state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.collective import follow
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.dashboard.data.timeline.overview import overview
from ringtune.dashboard.data.timeline.path import PATH_TYPES, PathTable
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.figures import timeline as figures
from ringtune.dashboard.figures.timeline_minimap import MAP_PIXELS, minimap
from ringtune.dashboard.pages import timeline_state as state
from ringtune.dashboard.pages.timeline_batch import followed_card
from ringtune.dashboard.routes import parse
from ringtune.dashboard.theme import PHASES
from ringtune.timeline.analysis.critical_path import CAUSES, critical_path
from ringtune.timeline.inputs import load
from ringtune.timeline.spans import SpanTable, Trace, concatenate
from ringtune.timeline.synthetic.generate import MILLISECOND, Schedule
from ringtune.timeline.vocabulary import Stage
from tests.dashboard.test_timeline_data import built, table
from tests.timeline import nccl_profiles
from tests.timeline.generated_run import generate_run
from tests.timeline.helpers import write_json
from tests.timeline.test_buckets import NAMES
from tests.timeline.test_buckets import recorded as recorded_ddp

PLAN = Schedule(ranks=3, steps=6, late_rank=2, late_ns=2 * MILLISECOND)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> TimelineIndex:
    run: Path = generate_run(tmp_path_factory.mktemp("more"), "more", PLAN)
    return trace.load(run, trace.sources(run))


def test_the_path_of_a_window_is_the_analysis_of_the_job(index: TimelineIndex) -> None:
    found = critical_path(Trace(index.spans, (), (), "merged", "job"))
    path, exact = index.path().within(-1e18, 1e18)
    assert exact
    assert [CAUSES[code] for code in path.cause.tolist()] == [one.cause for one in found.stretches]
    assert int((path.end_ns - path.begin_ns).sum()) == found.length_ns
    step = index.step_window(3)
    assert step is not None
    part, _ = index.path().within(step.begin_ns, step.end_ns)
    assert 0 < len(part) < len(path)
    assert ((part.end_ns > step.begin_ns) & (part.begin_ns < step.end_ns)).all()


def test_a_long_path_is_shown_by_what_dominates() -> None:
    count = 10_000
    begin = np.arange(count) * 10
    # Of ten stretches nine are short ones of cause 0 and one is long, of cause 5.
    length = np.where(np.arange(count) % 10 == 9, 10, 1)
    columns = dict.fromkeys(PATH_TYPES, np.zeros(count, dtype=np.int64))
    columns |= {"begin_ns": begin, "end_ns": begin + length, "cause": np.where(length == 10, 5, 0)}
    path = PathTable(**{name: columns[name].astype(kind) for name, kind in PATH_TYPES.items()})
    shown, exact = path.within(0, count * 10, pieces=100)
    assert not exact
    assert len(shown) == 100
    assert set(shown.cause.tolist()) == {5}
    assert (shown.begin_ns[0], shown.end_ns[-1]) == (0, path.end_ns[-1])
    assert np.array_equal(shown.begin_ns[1:], shown.end_ns[:-1])


def test_a_batch_is_followed_across_ranks(index: TimelineIndex) -> None:
    batch = 5
    found = follow(index, batch)
    assert found is not None
    assert [one.rank for one in found.ranks] == [0, 1, 2]
    assert (found.last_rank, found.late_ns) == (2, PLAN.late_ns)
    assert found.step == 2
    assert found.bytes == 4096 + 64
    for one in found.ranks:
        assert one.submit_ns is not None and one.agreed_ns is not None
        assert one.submit_ns < one.agreed_ns <= one.begin_ns < one.end_ns < one.done_ns
        assert one.end_ns - one.begin_ns == PLAN.communicate_ns
        assert one.done_ns - one.end_ns == 2 * PLAN.copy_ns
    assert follow(index, 0) is None
    assert follow(index, 10_000) is None


def test_a_click_on_a_message_shows_it_on_both_ranks() -> None:
    spans = table([(10, 90), (40, 90)])
    index = built(replace(spans, rank=np.array([2, 0], dtype=np.int32), batch=np.array([-7, -7])))
    asked = state.clicked_batch({"points": [{"customdata": -7}]})
    found = follow(index, asked)
    assert asked == state.asked(parse("/x", "?batch=-7"))["batch"] == -7 and found is not None
    assert [(one.rank, one.begin_ns) for one in found.ranks] == [(0, 40), (2, 10)]
    card = str(followed_card(found))
    assert "Message " in card and "on 2 ranks" in card
    figure = figures.timeline(index, index.view(Query()), "light", figures.Extras(followed=found))
    bars = next(one for one in figure.data if one.name == "Communicate")
    assert set(bars.customdata) == {-7} and all("message " in text for text in bars.hovertext)
    assert len([shape for shape in figure.layout.shapes if shape.type == "rect"]) == 2


def test_the_minimap_says_how_much_of_the_time_was_spent(index: TimelineIndex) -> None:
    # Ten spans of 10 ns in buckets of 100 ns, then nothing.
    found = overview(built(table([(at, at + 10) for at in range(0, 1000, 100)] + [(1990, 2000)])), pieces=20)
    share = found.share[Stage.COMMUNICATE]
    assert share[:10].tolist() == pytest.approx([0.1] * 10)
    assert share[10:-1].tolist() == [0] * 9
    shares = overview(index).share
    assert set(shares) == {Stage.COMMUNICATE, Stage.WAIT}
    mean = float(shares[Stage.COMMUNICATE].mean())
    total = PLAN.communicate_ns * 2 * PLAN.steps
    assert mean == pytest.approx(total / index.extent.length_ns, rel=1e-3)


def test_one_line_a_rank_shows_what_took_most_of_each_piece(index: TimelineIndex) -> None:
    def spans(rows: list[tuple[int, int]], stage: Stage, rank: int) -> SpanTable:
        found = table(rows, stage)
        return replace(found, rank=np.full(len(rows), rank, dtype=np.int32))

    job = [
        spans([(0, 1000)], Stage.STEP, 0),
        spans([(0, 300), (500, 530)], Stage.COMMUNICATE, 0),
        spans([(100, 140), (500, 600)], Stage.WAIT, 0),
        spans([(600, 700)], Stage.WAIT, 3),
    ]
    view = built(concatenate(job)).view(Query(Window(0, 1000), compact=True), limit=20)
    shown = [
        (view.lanes[lane].rank, view.lanes[lane].stage.label, begin, end, round(share, 3))
        for lane, begin, end, share in zip(
            view.shapes.lane.tolist(),
            view.shapes.begin_ns.tolist(),
            view.shapes.end_ns.tolist(),
            view.shapes.share.tolist(),
            strict=True,
        )
    ]
    assert shown == [
        (0, "communicate", 0, 300, 1.0),
        (0, "step", 300, 500, 1.0),
        (0, "wait", 500, 600, 1.0),
        (0, "step", 600, 1000, 1.0),
        (3, "wait", 600, 700, 1.0),
    ]
    whole = index.view(Query(compact=True))
    assert len(whole.shapes) <= 2400
    figure = figures.timeline(index, whole)
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", "rank 1", "rank 2"]


def test_figures_draw_them(index: TimelineIndex) -> None:
    window = index.step_window(2)
    view = index.view(Query(window))
    extras = figures.Extras(index.path().within(view.window.begin_ns, view.window.end_ns), follow(index, 5))
    figure = figures.timeline(index, view, "dark", extras)
    names = [one.name for one in figure.data]
    assert names.count("critical path") == 2
    assert "batch 5" in names and "submitted" in names
    assert figure.layout.yaxis.ticktext[0] == "Critical path"
    assert len([shape for shape in figure.layout.shapes if shape.type == "rect"]) == 3
    bars = next(one for one in figure.data if one.name == "Communicate")
    assert set(bars.customdata) >= {5, 6}
    small = minimap(overview(index), view.window, "light")
    assert (small.layout.height, small.layout.dragmode) == (MAP_PIXELS, "select")
    assert len(small.to_json()) < 100_000


def test_phases_are_chosen(index: TimelineIndex) -> None:
    stages = state.stages_of(["wait", "no phase", "step"])
    assert {lane.stage for lane in index.view(Query(stages=stages)).lanes} == {Stage.WAIT, Stage.STEP}


def test_events_of_the_figures_move_the_window(index: TimelineIndex) -> None:
    held = Window(10e6, 20e6)

    def after(trigger: str, event: dict[str, object] | None) -> tuple[Window | None, bool]:
        return state.next_window(index, trigger, state.Controls(event, "", None, held))

    assert after("timeline-graph.relayoutData", {"xaxis.range[0]": 1, "xaxis.range[1]": 2}) == (Window(1e6, 2e6), False)
    assert after("timeline-map.selectedData", {"range": {"x": [7, 3]}}) == (Window(3e6, 7e6), True)
    assert after("timeline-map.selectedData", {"range": {"x": "nonsense"}}) == (held, True)
    assert after("timeline-map.clickData", {"points": [{"x": 50}]}) == (Window(45e6, 55e6), True)
    assert after("timeline-map.clickData", {}) == (held, True)
    assert after("timeline-fit.n_clicks", None) == (None, True)
    assert after("", None) == (held, False)
    assert state.clicked_batch({"points": [{"customdata": 7}]}) == 7
    for nothing in (None, {}, {"points": []}, {"points": [{"customdata": "x"}]}, {"points": [{"customdata": None}]}):
        assert state.clicked_batch(nothing) == 0


def test_an_address_restores_the_view() -> None:
    wanted = {"q": "fc", "ranks": "0,2", "phases": "wait,step", "path": "1", "batch": "5", "empty": ""}
    found = state.address("/run/x/timeline", Window(1.25e6, 7.5e6), wanted)
    route = parse(found["path"], "?" + found["search"])
    assert state.asked(route) == {"window": [1.25e6, 7.5e6], "revision": 0, "batch": 5}
    assert (route.list("ranks"), route.list("phases"), route.query["path"]) == (["0", "2"], ["wait", "step"], "1")
    assert "empty" not in route.query
    for odd in ("?batch=-1e99", "?batch=nan", "?batch=x", "?from=5&to=4", "?from=1"):
        assert state.asked(parse("/run/x/timeline", odd)) == {"window": None, "revision": 0, "batch": 0}


def test_kernels_of_a_profile_have_a_lane(tmp_path: Path) -> None:
    files = [write_json(tmp_path / f"rank{rank}.json", one) for rank, one in enumerate(nccl_profiles.profiles())]
    index = TimelineIndex.build(load(files))
    lanes = [(lane.stage, lane.thread, lane.depth) for lane in index.lanes if lane.rank == 2]
    threads = [(Stage.OTHER, "thread 102", 0), (Stage.OTHER, "thread 102", 1), (Stage.OTHER, "thread 105", 0)]
    assert lanes[:2] == [(Stage.STEP, "", 0), (Stage.COMMUNICATE, "", 0)]
    assert lanes[2:] == [(Stage.KERNEL, "thread 7", 0), *threads, (Stage.OTHER, "thread 105", 1)]
    kernels = nccl_profiles.STEPS * (nccl_profiles.KERNELS + 1)
    assert [len(lane) for lane in index.lanes if lane.stage == Stage.KERNEL] == [kernels] * nccl_profiles.RANKS


def test_calls_of_a_thread_lie_below_their_callers_in_lanes_of_their_own() -> None:
    spans = replace(
        table([(0, 9000), (0, 5000), (1000, 2000), (10000, 15000), (500, 20000)], Stage.OTHER),
        facts=np.array([1, 1, 1, 1, 2], dtype=np.int32),
        fact_texts=("", '"thread":"python 1"', '"thread":"gloo 2"'),
    )
    index = TimelineIndex.build(Trace(spans, (), (), "chrome"))
    found = [
        (lane.thread, lane.depth, list(zip(lane.begin.tolist(), lane.end.tolist(), strict=True)))
        for lane in index.lanes
    ]
    assert found == [
        ("python 1", 0, [(0, 9000), (10000, 15000)]),
        ("python 1", 1, [(0, 5000)]),
        ("python 1", 2, [(1000, 2000)]),
        ("gloo 2", 0, [(500, 20000)]),
    ]
    drawn = figures.timeline(index, index.view(Query()))
    assert list(drawn.layout.yaxis.ticktext) == ["python 1", "gloo 2"]
    texts = drawn.data[0].text
    assert len(texts) == 5 and all(texts)


def test_buckets_of_ddp_are_called_what_they_are(tmp_path: Path) -> None:
    """Their spans, the batch that is followed and the search say number and parameters; the recorded name is found."""
    run = recorded_ddp(tmp_path / "run")
    index = TimelineIndex.build(*trace.read_all(run, trace.sources(run)))
    assert set(NAMES.values()) <= set(index.spans.tensors) and not [
        one for one in index.spans.tensors if ".7.1." in one
    ]
    moving = index.spans.stage == Stage.COMMUNICATE
    tensors = [index.spans.tensors[code] for code in index.spans.tensor[moving]]
    followed = follow(index, int(index.spans.batch[moving][tensors.index(NAMES[262145])]))
    assert followed is not None and followed.label == NAMES[262145]
    assert index.next_hit("bucket 1 of 3 (2", 0) == index.next_hit(".262145.", 0) is not None


def edge_labels(figure: go.Figure) -> list[go.Scatter]:
    return [one for one in figure.data if one.type == "scatter" and one.mode == "text"]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_a_span_that_began_before_the_window_is_named_at_the_windows_edge(index: TimelineIndex, share: float) -> None:
    step = index.step_window(3)
    assert step is not None
    window = Window(step.begin_ns + share * step.length_ns, step.end_ns)
    figure = figures.timeline(index, index.view(Query(window, margin=15.0)))
    edge, left = edge_labels(figure), window.begin_ns / 1e6
    assert "step 3" in {
        text.strip() for one in edge if one.legendgroup == PHASES[Stage.STEP.label].label for text in one.text
    }
    assert {x for one in edge for x in one.x} == {left}
    beside = 0
    for bars in (one for one in figure.data if one.type == "bar"):
        for begin, length, text in zip(bars.base, bars.x, bars.text, strict=True):
            assert not (text and begin < left < begin + length)
            beside += bool(text) and begin + length < left
    assert beside > 0  # what is moved into the window has its label


def test_a_window_that_nothing_reaches_into_has_no_labels_at_its_edge(index: TimelineIndex) -> None:
    assert edge_labels(figures.timeline(index, index.view(Query()))) == []
