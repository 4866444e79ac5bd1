"""Timelines of jobs that still record: what comes is added to what is there, and the result is that of reading all."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ringtune.dashboard.data import timeline_live, trace
from ringtune.dashboard.data.timeline import Query, TimelineIndex
from ringtune.dashboard.data.timeline_live import LiveTimeline, NotFollowed
from ringtune.dashboard.data.timeline_prepare import Preparing
from ringtune.dashboard.data.timeline_tail import drawn, tail
from ringtune.timeline import following
from ringtune.timeline.spans import COLUMN_TYPES
from tests.dashboard.folders import CLOSE, Recording


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    monkeypatch.setattr(timeline_live, "REST", 0)
    return Recording(tmp_path)


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


@pytest.mark.parametrize("block", [3000, 50_000, 4 << 20])
def test_a_timeline_read_as_it_grows_is_the_one_read_at_once(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(following, "BLOCK_BYTES", block)
    live = LiveTimeline(recording.run)
    for share in (0.05, 0.3, 0.31, 0.9, 1.0):
        recording.upto(share)
        same(ready(live), whole_of(recording.run))


def test_lanes_with_levels_grow_as_they_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_live, "REST", 0)
    monkeypatch.setattr("ringtune.dashboard.data.timeline_levels.COARSEST", 16)
    recording, levels = Recording(tmp_path, steps=120), 0
    live = LiveTimeline(recording.run)
    for share in (0.1, 0.2, 0.5, 0.6, 1.0):
        recording.upto(share)
        whole = whole_of(recording.run)
        same(ready(live), whole)
        levels += sum(len(lane.levels) for lane in whole.lanes)
    assert levels > 20


def test_an_event_that_is_half_there_waits(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.5)
    before = len(ready(live).recorded())
    recording.upto(0.5, torn='{"name":"SHM_ALLREDUCE","ph":"X","pid":0,"ts":1')
    assert len(ready(live).recorded()) == before
    recording.upto(1.0)
    same(ready(live), whole_of(recording.run))


def test_a_look_reads_and_moves_only_what_is_new(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.9)
    spans = len(ready(live).recorded())
    # Whoever reads an old byte again finds nonsense, or as many spans again.
    for part in recording.lines:
        with part.open("r+") as stream:
            stream.write("[" + "#" * 1000)
    moved = live._lanes.moved
    for share in (0.92, 0.94, 0.96):
        for part, lines in recording.lines.items():
            length = len(part.read_text().rstrip().removesuffix("]").rstrip())
            fresh = lines[int((share - 0.02) * len(lines)) : int(share * len(lines))]
            with part.open("r+") as stream:
                stream.seek(length)
                stream.write("".join(",\n" + line for line in fresh) + CLOSE)
        grown = ready(live)
    added = len(grown.recorded()) - spans
    assert 0 < added < spans / 5
    assert live._lanes.moved - moved < 3 * added + 200


def test_a_second_file_of_a_rank_goes_on_where_the_first_ended(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.4)
    ready(live)
    for part, lines in list(recording.lines.items()):
        head = next(line for line in lines if '"ringtune_part"' in line)
        event = json.loads(head)
        event["args"]["file"] = 1
        cut = int(0.4 * len(lines))
        rest = [json.dumps(event), *lines[cut:]]
        recording.lines[part] = lines[:cut]
        recording.lines[part.with_name(part.name.replace(".json", ".1.json"))] = rest
    recording.upto(1.0)
    grown = ready(live)
    same(grown, whole_of(recording.run))
    assert grown.step_range() == (0, 39)


def test_a_file_that_is_another_one_is_read_from_its_start(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.8)
    ready(live)
    for part in recording.lines:
        part.unlink()
    recording.upto(0.3)
    same(ready(live), whole_of(recording.run))


def test_what_began_before_everything_else_moves_the_job_s_begin(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.5)
    ready(live)
    lines = next(iter(recording.lines.values()))
    early = next(json.loads(line) for line in lines if '"STEP"' in line)
    lines.append(json.dumps({**early, "name": "epoch", "cat": "range", "ts": early["ts"] - 5000, "dur": 9000.0}))
    recording.upto(1.0)
    same(ready(live), whole_of(recording.run))


def test_clock_samples_that_place_old_spans_elsewhere_are_followed(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    parts = list(recording.lines)
    for line in range(len(recording.lines[parts[1]])):
        event = json.loads(recording.lines[parts[1]][line])
        if event["name"] == "ringtune_part":
            recording.lines[parts[1]][line] = json.dumps({**event, "args": {**event["args"], "host": "other"}})
    steps = [json.loads(line) for line in recording.lines[parts[1]] if '"STEP"' in line]
    for step, offset in ((steps[1], 1_000_000), (steps[30], 9_000_000)):
        sample = {"name": "CLOCK", "cat": "clock", "ph": "i", "s": "p", "pid": 1, "tid": 0, "ts": step["ts"]}
        at = next(n for n, line in enumerate(recording.lines[parts[1]]) if json.loads(line).get("ts") == step["ts"])
        args = {"offset_ns": offset, "error_ns": 1000}
        recording.lines[parts[1]].insert(at, json.dumps({**sample, "args": args}))
    for share in (0.2, 0.5, 1.0):
        recording.upto(share)
        same(ready(live), whole_of(recording.run))


def test_much_is_read_beside_the_pages(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_live, "AT_ONCE_BYTES", 10_000)
    recording.upto(1.0)
    live = LiveTimeline(recording.run)
    with live.held() as first:
        assert isinstance(first, Preparing)
    assert live._reader is not None
    live._reader.join()
    same(ready(live), whole_of(recording.run))


def test_what_was_read_can_be_drawn_while_the_rest_is_read(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_live, "AT_ONCE_BYTES", 10_000)
    monkeypatch.setattr(timeline_live, "PIECE_BYTES", 1)
    monkeypatch.setattr(following, "BLOCK_BYTES", 20_000)
    recording.upto(1.0)
    live, read, go_on = LiveTimeline(recording.run), threading.Event(), threading.Event()
    left = live._left

    def between_pieces() -> int:
        if live._reader is threading.current_thread() and live._parts:
            read.set()
            assert go_on.wait(120)
        return left()

    monkeypatch.setattr(live, "_left", between_pieces)
    with live.held() as first:
        assert isinstance(first, Preparing)
    assert read.wait(120)
    begun, progress = ready(live), live.reading
    assert progress is not None and 0 < progress.share < 1
    assert 0 < len(begun.recorded()) < len(whole_of(recording.run).recorded())
    go_on.set()
    assert live._reader is not None
    live._reader.join()
    assert live.reading is None
    same(ready(live), whole_of(recording.run))


def test_the_tail_is_what_came_since_a_view_was_drawn(recording: Recording) -> None:
    live = LiveTimeline(recording.run)
    recording.upto(0.5)
    before = json.loads(json.dumps(drawn(ready(live))))
    recording.upto(0.7)
    index = ready(live)
    found = tail(index, before)
    assert found is not None and found.window == index.clamped(None)
    for number, (lane, old) in enumerate(zip(index.lanes, before, strict=True)):
        own = found.shapes.lane == number
        assert int(found.shapes.end_ns[own].max()) == int(lane.reach[-1]) > old[3]
        assert int(found.shapes.end_ns[own].min()) > old[3]
        assert int(found.shapes.count[own].sum()) >= int((lane.end > old[3]).sum())
    nothing = tail(index, drawn(index))
    assert nothing is not None and len(nothing.shapes) == 0


@pytest.mark.parametrize("sent", [None, [], "x", [[0, 6, 1, 5]], [[0, "6", 1, None]] * 10, [[0]] * 10])
def test_a_tail_does_not_fit_onto_other_lanes_or_nonsense(recording: Recording, sent: object) -> None:
    recording.upto(0.5)
    index = ready(LiveTimeline(recording.run))
    assert tail(index, sent) is None
    higher = [[rank, stage, rows + 1, end] for rank, stage, rows, end in drawn(index)]
    assert tail(index, higher) is None


def test_packed_parts_and_those_of_other_tools_are_not_followed(recording: Recording) -> None:
    recording.upto(1.0)
    part = next(iter(recording.lines))
    part.write_text('[\n{"name":"a","ph":"X","pid":0,"tid":0,"ts":1,"dur":1}\n]\n')
    with pytest.raises(NotFollowed), LiveTimeline(recording.run).held():
        pass
    os.replace(part, part.with_name(part.name + ".gz"))
    with pytest.raises(NotFollowed), LiveTimeline(recording.run).held():
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time in seconds that the module sees."""
    now = [100.0]
    monkeypatch.setattr(timeline_live.time, "monotonic", lambda: now[0])
    yield now


def test_new_spans_are_shown_within_a_few_seconds_however_dear_that_is(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording(tmp_path)
    recording.upto(0.5)
    live = LiveTimeline(recording.run)
    read = live._read

    def dear(limit_bytes: int) -> None:
        clock[0] += 2.0
        read(limit_bytes)

    monkeypatch.setattr(live, "_read", dear)
    first = ready(live)
    before = live.state
    recording.upto(1.0)
    clock[0] += timeline_live.LAG_S - 0.01
    assert live.state == before and ready(live) is first
    clock[0] += 0.02
    assert live.state != before and ready(live) is not first
