"""Timelines of jobs that still record: what comes is added to what is there, and the result is that of reading all."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.live.tail import drawn, tail
from ringtune.dashboard.data.live.timeline import LiveTimeline, NotFollowed
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.timeline.reading import part_reader
from ringtune.timeline.spans import COLUMN_TYPES, Instant, concatenate
from ringtune.timeline.vocabulary import Stage
from tests.dashboard.folders import Content, Recording

pytestmark = pytest.mark.usefixtures("every_look_counts")


def ready(live: LiveTimeline) -> TimelineIndex:
    with live.held() as index:
        assert isinstance(index, TimelineIndex)
        return index


def same(grown: TimelineIndex, whole: TimelineIndex) -> None:
    """Both hold the same lanes and spans, and answer alike."""
    assert [(one.rank, one.stage, len(one), one.rows) for one in grown.lanes] == [
        (one.rank, one.stage, len(one), one.rows) for one in whole.lanes
    ]
    for mine, theirs in zip(grown.lanes, whole.lanes, strict=True):
        for name in ("begin", "end", "reach", "row"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
        levels = {level.width_ns: level for level in mine.levels}
        for level in theirs.levels:
            found = levels[level.width_ns]
            for name in ("begin", "end", "reach", "gap", "count"):
                assert np.array_equal(getattr(found, name), getattr(level, name)), name
            assert np.array_equal(found.first - mine.first, level.first - theirs.first)
    one, other = grown.recorded(), whole.recorded()
    for name in set(COLUMN_TYPES) - {"name", "tensor", "facts"}:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.tensor_texts() == other.tensor_texts() and one.name_texts() == other.name_texts()
    assert grown.instants == whole.instants
    assert (grown.ranks, grown.extent, grown.step_range()) == (whole.ranks, whole.extent, whole.step_range())
    views = [index.view(Query(None, search="grad"), limit=100) for index in (grown, whole)]
    assert views[0].hits == views[1].hits and len(views[0].shapes) == len(views[1].shapes)


def whole_of(run: Path) -> TimelineIndex:
    return trace.load(run, trace.sources(run))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("block", [7, 1000, 1 << 17])
def test_a_timeline_read_as_it_grows_is_the_one_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, packed: bool
) -> None:
    monkeypatch.setattr(part_reader, "BLOCK_RECORDS", block)
    recording = Recording(tmp_path, packed=packed)
    live = LiveTimeline(recording.run)
    for share in (0.05, 0.3, 0.31, 0.9, 1.0):
        recording.upto(share)
        same(ready(live), whole_of(recording.run))


def test_lanes_with_levels_grow_as_they_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringtune.dashboard.data.timeline.levels.COARSEST", 16)
    recording, levels = Recording(tmp_path, steps=120), 0
    live = LiveTimeline(recording.run)
    for share in (0.1, 0.2, 0.5, 0.6, 1.0):
        recording.upto(share)
        whole = whole_of(recording.run)
        same(ready(live), whole)
        levels += sum(len(lane.levels) for lane in whole.lanes)
    assert levels > 20


@pytest.mark.parametrize("length", [1, 47])
def test_a_record_that_is_half_there_waits(recording: Recording, length: int) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.5)
    before = len(ready(live).recorded())
    recording.upto(0.5, torn=b"\x01" * length)
    assert len(ready(live).recorded()) == before
    recording.upto(1.0)
    same(ready(live), whole_of(recording.run))


def test_a_look_reads_and_moves_only_what_is_new(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.9)
    spans = len(ready(live).recorded())
    # Whoever reads an old byte again finds nonsense, or as many spans again.
    for part in recording.parts:
        with part.open("r+b") as stream:
            stream.write(b"#" * 1000)
    moved = live._lanes.moved
    for share in (0.92, 0.94, 0.96):
        for part, content in recording.parts.items():
            units = content.units()
            fresh = units[int((share - 0.02) * len(units)) : int(share * len(units))]
            with part.open("ab") as stream:
                stream.write(b"".join(fresh))
        grown = ready(live)
    added = len(grown.recorded()) - spans
    assert 0 < added < spans / 5
    assert live._lanes.moved - moved < 3 * added + 200


def test_a_second_file_of_a_rank_goes_on_where_the_first_ended(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.4)
    ready(live)
    for part, content in list(recording.parts.items()):
        order = np.argsort(content.spans.end_ns, kind="stable")
        cut = int(0.4 * len(order))
        rest = replace(content, info=replace(content.info, file=1), spans=content.spans.take(order[cut:]), instants=[])
        recording.parts[part] = replace(content, spans=content.spans.take(order[:cut]))
        recording.parts[part.with_name(part.name.replace(".spans", ".1.spans"))] = rest
    recording.upto(1.0)
    grown = ready(live)
    same(grown, whole_of(recording.run))
    assert grown.step_range() == (0, 39)


def test_a_file_that_is_another_one_is_read_from_its_start(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.8)
    ready(live)
    for part in recording.parts:
        part.unlink()
    recording.upto(0.3)
    same(ready(live), whole_of(recording.run))


def test_what_began_before_everything_else_moves_the_job_s_begin(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    part, content = next(iter(recording.parts.items()))
    # Texts stand at the begin of these files: what is appended later may name no other.
    content.spans = replace(content.spans, tensors=(*content.spans.tensors, "epoch"))
    recording.upto(0.5)
    ready(live)
    early = content.spans.take(content.spans.in_stage(Stage.STEP)).take(slice(1))
    longer = replace(
        early,
        begin_ns=early.begin_ns - 5_000_000,
        end_ns=content.spans.end_ns.max(keepdims=True),
        stage=np.full(1, Stage.RANGE, np.uint8),
        names=("epoch",),
        name=np.zeros(1, np.int32),
    )
    recording.parts[part] = replace(content, spans=concatenate([content.spans, longer]))
    recording.upto(1.0)
    same(ready(live), whole_of(recording.run))


def test_clock_samples_that_place_old_spans_elsewhere_are_followed(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    part = list(recording.parts)[1]
    content = recording.parts[part]
    steps = content.spans.of_stage(Stage.STEP)
    moments = steps.end_ns[[1, 30]].tolist()
    samples = [
        Instant("CLOCK", "clock", 1, at, {"offset_ns": offset, "error_ns": 1000})
        for at, offset in zip(moments, (1_000_000, 9_000_000), strict=True)
    ]
    recording.parts[part] = Content(replace(content.info, host="other"), content.spans, samples)
    for share in (0.2, 0.5, 1.0):
        recording.upto(share)
        same(ready(live), whole_of(recording.run))


def test_the_tail_is_what_came_since_a_view_was_drawn(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.5)
    before = json.loads(json.dumps(drawn(ready(live).lanes)))
    recording.upto(0.7)
    index = ready(live)
    found = tail(index, before, Query())
    assert found is not None and found.window == index.clamped(None)
    for number, (lane, old) in enumerate(zip(index.lanes, before, strict=True)):
        own = found.shapes.lane == number
        assert int(found.shapes.end_ns[own].max()) == int(lane.reach[-1]) > old[3]
        assert int(found.shapes.end_ns[own].min()) > old[3]
        assert int(found.shapes.count[own].sum()) >= int((lane.end > old[3]).sum())
    nothing = tail(index, drawn(index.lanes), Query())
    assert nothing is not None and len(nothing.shapes) == 0


@pytest.mark.parametrize("sent", [None, [], "x", [[0, 6, 1, 5]], [[0, "6", 1, None]] * 10, [[0]] * 10])
def test_a_tail_does_not_fit_onto_other_lanes_or_nonsense(recording: Recording, sent: object) -> None:
    recording.upto(0.5)
    index = ready(LiveTimeline(recording.run))
    assert tail(index, sent, Query()) is None
    higher = [[rank, stage, rows + 1, end] for rank, stage, rows, end in drawn(index.lanes)]
    assert tail(index, higher, Query()) is None


def test_parts_of_other_tools_are_not_followed_and_what_is_none_is_said(recording: Recording) -> None:
    recording.upto(1.0)
    part = next(iter(recording.parts))
    part.unlink()
    other = part.with_suffix(".json")
    other.write_text('[\n{"name":"a","ph":"X","pid":0,"tid":0,"ts":1,"dur":1}\n]\n')
    with pytest.raises(NotFollowed), LiveTimeline(recording.run).held():
        pass
    os.replace(other, part)
    with pytest.raises(Unreadable, match=r"^timeline/rank-00000.spans: no part: at offset 0 stands"):
        ready(LiveTimeline(recording.run))


@pytest.mark.parametrize("shown", [Query(ranks=(1,)), Query(stages=(Stage.COMMUNICATE,)), Query(search="grad"),
                                   Query(compact=True)])  # fmt: skip
def test_what_comes_is_added_to_every_view_of_the_whole_timeline(recording: Recording, shown: Query) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.5)
    view = ready(live).view(shown)
    before = json.loads(json.dumps(drawn(view.lanes)))
    recording.upto(0.52)
    index = ready(live)
    found, now = tail(index, before, shown), index.view(shown)
    assert found is not None and found.lanes == now.lanes and found.compact == shown.compact
    assert found.searched == bool(shown.search) and len(found.shapes)
    ends = np.array([end for *_, end in before])
    if not shown.compact:
        assert (found.shapes.end_ns > ends[found.shapes.lane]).all()
    for number, lane in enumerate(now.lanes):
        mine = [shapes.end_ns[shapes.lane == number] for shapes in (found.shapes, now.shapes)]
        if not shown.compact and int(lane.reach[-1]) > ends[number]:
            assert mine[0].max() == mine[1].max() == int(lane.reach[-1])
    if shown.search:
        hits = {int(span) for span in now.shapes.span[now.shapes.hit] if span >= 0}
        fresh = found.shapes.span[(found.shapes.span >= 0) & (found.shapes.begin_ns > ends.max())]
        assert {int(span) for span in found.shapes.span[found.shapes.hit]} & set(fresh.tolist()) == hits & set(
            fresh.tolist()
        )
