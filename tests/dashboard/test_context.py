from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringtune import layout
from ringtune.dashboard import cpu_budget
from ringtune.dashboard.context import Context
from ringtune.dashboard.cpu_budget import CpuBudget
from ringtune.dashboard.data.runs import RunsFolder
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.page_registry import TABS, TIMELINE_PAGES
from ringtune.dashboard.pages import overview
from ringtune.dashboard.routes import Route
from ringtune.dashboard.stores import timelines
from ringtune.timeline.reading.part_layout import RECORD
from ringtune.timeline.synthetic.generate import Schedule
from ringtune.timeline.vocabulary import Stage
from tests.dashboard.folders import sampled
from tests.timeline.generated_run import generate_run


@pytest.fixture
def context(tmp_path: Path) -> Context:
    sampled(generate_run(tmp_path, "one", Schedule(ranks=2, steps=3)))
    return Context(RunsFolder(tmp_path))


def only(context: Context, page: str) -> Route:
    return Route(page, context.folder.rows()[0].info.id)


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("overview", lambda run: layout.step_log(run, 1)),
        ("timeline", lambda run: layout.timeline_part(run, 0)),
        ("tuning", layout.tuning_journal),
        ("system", lambda run: layout.sample_log(run, 0)),
        ("scaling", lambda run: layout.scaling_file(run, "resnet")),
    ],
)
def test_a_page_changes_with_its_own_files_only(context: Context, page: str, file: object) -> None:
    before = {tab: context.stamp(only(context, tab)) for tab in TABS}
    path = file(context.folder.rows()[0].info.path)  # type: ignore[operator]
    with path.open("a") as stream:
        stream.write("\n")
    changed = {tab for tab in TABS if context.stamp(only(context, tab)) != before[tab]}
    # What if says how a running job does now, from its step logs.
    also = {"overview": {"what-if"}}
    assert changed == (set(TIMELINE_PAGES) if page == "timeline" else {page, *also.get(page, set())})


def test_what_did_not_change_is_not_read_again(context: Context) -> None:
    run = context.folder.rows()[0].info
    assert context.timelines.timeline(run) is context.timelines.timeline(run)
    assert context.runs.tuning(run) is context.runs.tuning(run)
    assert context.runs.scaling([run]) is context.runs.scaling([run])
    assert context.runs.steps(run) is context.runs.steps(run)


def test_a_growing_timeline_is_not_read_all_the_time(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "COST_FACTOR", 1e9)
    run, route = context.folder.rows()[0].info, only(context, "timeline")
    first, stamp = context.timelines.timeline(run), context.stamp(route)
    with layout.timeline_part(run.path, 0).open("ab") as stream:
        stream.write(b"\n")
    assert context.timelines.timeline(run) is first and context.stamp(route) == stamp
    context.timelines._fresh_until.clear()
    assert context.stamp(route) != stamp
    assert context.timelines.timeline(run) is not first


def test_a_live_timeline_is_followed_and_one_that_ended_is_read(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, route = context.folder.rows()[0].info, only(context, "timeline")
    with context.timelines.watched(run) as whole:
        assert whole is context.timelines.timeline(run)
    live = replace(run, status="live")
    monkeypatch.setattr(context.folder, "find", lambda _id: live)
    with context.timelines.watched(live) as followed:
        assert isinstance(followed, TimelineIndex) and isinstance(whole, TimelineIndex)
        assert followed is not whole and followed.extent == whole.extent
    before = context.stamp(route)
    part = layout.timeline_part(run.path, 0)
    content = part.read_bytes()
    records = np.frombuffer(content, RECORD, offset=2 * RECORD.itemsize)
    step = records[records["stage"] == int(Stage.STEP)][-1:].copy()
    step["step"] = 3
    part.write_bytes(content + step.tobytes())
    assert context.stamp(route) != before
    with context.timelines.watched(live) as grown:
        assert isinstance(grown, TimelineIndex) and grown.step_range() == (0, 3)


def test_a_live_timeline_that_cannot_be_followed_is_read_whole(context: Context) -> None:
    run = replace(context.folder.rows()[0].info, status="live")
    part = layout.timeline_part(run.path, 0)
    packed = gzip.compress(part.read_bytes())
    part.unlink()
    part.with_name(part.name + ".gz").write_bytes(packed)
    with context.timelines.watched(run) as index:
        assert isinstance(index, TimelineIndex) and index.ranks == (0, 1)


def test_a_run_that_goes_away_is_gone(context: Context) -> None:
    route = only(context, "overview")
    layout.run_file(context.folder.rows()[0].info.path).unlink()
    assert context.run(route) is None
    assert context.stamp(route) == "gone"


def test_what_is_dear_to_draw_is_drawn_less_often(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    route, other = only(context, "overview"), only(context, "system")
    run = context.run(route)
    assert run is not None and context.redraw_interval_ms(route) == 0  # it has ended: what changes is drawn at once
    live, made = replace(run, status="live"), CpuBudget()
    clock = iter((10.0, 10.001, 20.0, 20.1))
    monkeypatch.setattr(cpu_budget.time, "thread_time", lambda: next(clock))
    assert made.redraw_interval_ms(route, live) == 6000
    with made.drawing(route):
        pass
    assert made.redraw_interval_ms(route, live) == 6000
    with made.drawing(route):
        pass
    assert made.redraw_interval_ms(route, live) == 200_000
    assert made.redraw_interval_ms(other, live) == 6000


def test_a_poll_looks_at_each_run_once(context: Context) -> None:
    route = only(context, "overview")
    with context.cpu_budget.poll():
        run = context.run(route)
        assert context.cpu_budget.known == {route.run: run} and context.run(route) is run
    assert context.cpu_budget.known is None


def test_the_news_of_a_poll_have_another_shape_only_when_the_cards_do(context: Context) -> None:
    route = only(context, "overview")
    log = layout.step_log(context.folder.rows()[0].info.path, 0)
    before = overview.news(context, route, {})
    assert before["numbers"][0] == ("Steps", "3", "on 2 ranks")
    last = json.loads(log.read_text().splitlines()[-1])
    with log.open("a") as stream:
        stream.write(json.dumps({**last, "step": 3}) + "\n")
    grown = overview.news(context, route, {})
    assert grown["numbers"][0] == ("Steps", "4", "on 2 ranks") and grown["shape"] == before["shape"]
    with log.open("a") as stream:
        stream.write("[1]\n")
    assert overview.news(context, route, {})["shape"] != before["shape"]


def test_a_page_says_when_it_is_not_of_now(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(context.folder.rows()[0].info, status="live")
    assert context.timelines.pace_words(run) == "", "nothing was made yet"
    context.timelines.analysis(run)
    context.timelines._rest(run.path, (), 0.02)
    assert context.timelines.pace_words(run) == "", "every two seconds is often enough"
    context.timelines._rest(run.path, (), 2.5)
    assert "every 4 min 10 s, because it takes 2.50 s of a core" in context.timelines.pace_words(run)
    assert context.timelines.pace_words(replace(run, status="finished")) == ""
