"""Timelines of jobs that still record: what comes is added to what is there, and the result is that of reading all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.live import backlog
from ringtune.dashboard.data.live import timeline as live_timeline
from ringtune.dashboard.data.live.tail import drawn, tail
from ringtune.dashboard.data.live.timeline import LiveTimeline, NotFollowed
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.timeline.reading import following
from ringtune.timeline.spans import COLUMN_TYPES
from ringtune.timeline.vocabulary import Stage
from tests.dashboard.folders import CLOSE, Recording

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
    monkeypatch.setattr("ringtune.dashboard.data.timeline.levels.COARSEST", 16)
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


@pytest.fixture
def long(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Parts of which only the last few thousand bytes are read at once, and a past that nobody reads by itself."""
    monkeypatch.setattr(live_timeline, "AT_ONCE_BYTES", 10_000)
    monkeypatch.setattr(live_timeline, "NEWEST_BYTES", 12_000)
    monkeypatch.setattr(live_timeline, "LEAST_BYTES", 1000)
    monkeypatch.setattr(live_timeline, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(backlog.BacklogReader, "looked_at", lambda self: None)
    return recording


def ends(index: TimelineIndex) -> dict[tuple[int, int], int]:
    return {(lane.rank, int(lane.stage)): int(lane.reach[-1]) for lane in index.lanes}


def test_of_a_long_timeline_the_newest_is_there_at_once_and_the_rest_when_it_is_read(long: Recording) -> None:
    long.upto(0.9)
    live, whole = LiveTimeline(long.run), whole_of(long.run)
    index = ready(live)
    assert 0 < len(index.recorded()) < len(whole.recorded()) / 2
    known = index.step_range()
    assert known is not None and known[1] == whole.step_range()[1]  # type: ignore[index]
    assert all(ends(whole)[lane] == end for lane, end in ends(index).items())
    [gap], step = index.missing, whole.step_window(20)
    assert step is not None
    for lane in whole.lanes:
        own = next((one for one in index.lanes if (one.rank, one.stage) == (lane.rank, lane.stage)), None)
        lost = ~np.isin(lane.begin, own.begin) if own else np.ones(len(lane), dtype=np.bool_)
        assert (lane.end[lost] > gap.begin_ns - step.length_ns).all() and (
            lane.begin[lost] < gap.end_ns + step.length_ns
        ).all()
    reading, shares = live.reading, list[float]()
    while reading is not None:
        shares.append(reading.share)
        assert live._piece_of_past()
        reading = live.reading
    assert len(shares) > 3 and shares == sorted(shares) and 0 < shares[0] < shares[-1] < 1
    assert not live._piece_of_past() and ready(live).missing == ()
    same(ready(live), whole)


def test_the_newest_comes_while_the_past_is_read(long: Recording) -> None:
    live = LiveTimeline(long.run)
    for share in (0.8, 0.85, 0.9, 0.95, 1.0):
        long.upto(share)
        assert ready(live).extent.end_ns == whole_of(long.run).extent.end_ns
        assert live._piece_of_past()
    while live._piece_of_past():
        pass
    same(ready(live), whole_of(long.run))


def test_a_job_that_writes_more_than_a_look_may_cost_leaves_gaps(long: Recording) -> None:
    live = LiveTimeline(long.run)
    for share in (0.1, 0.5, 0.9):
        long.upto(share)
        assert ready(live).extent.end_ns == whole_of(long.run).extent.end_ns
    assert len(ready(live).missing) > 1
    while live._piece_of_past():
        pass
    same(ready(live), whole_of(long.run))


def test_what_was_left_out_is_looked_through_for_clocks_and_lists_of_tensors(long: Recording) -> None:
    """Both stand before most events, here in the first part of a file that is only read last."""
    first, second = list(long.lines)
    for line in range(len(long.lines[second])):
        event = json.loads(long.lines[second][line])
        if event["name"] == "ringtune_part":
            long.lines[second][line] = json.dumps({**event, "args": {**event["args"], "host": "other"}})
    steps = [json.loads(line) for line in long.lines[second] if '"STEP"' in line]
    sample = {"name": "CLOCK", "cat": "clock", "ph": "i", "s": "p", "pid": 1, "tid": 0, "ts": steps[9]["ts"]}
    clock = json.dumps({**sample, "args": {"offset_ns": 5_000_000, "error_ns": 1000}}, separators=(",", ":"))
    long.lines[second].insert(len(long.lines[second]) // 4, clock)
    begin, names = steps[-1]["ts"], ["only.here", "and.here"]
    known = {
        "name": "ringtune_tensors",
        "ph": "M",
        "pid": 0,
        "tid": 0,
        "args": {"id": 9, "names": names, "bytes": [8, 8]},
    }
    long.lines[first].insert(len(long.lines[first]) // 4, json.dumps(known, separators=(",", ":")))
    group = {"name": "NEGOTIATE_ALLREDUCE", "cat": "negotiate", "ph": "X", "pid": 0, "tid": 0, "ts": begin, "dur": 9.0}
    long.lines[first].append(json.dumps({**group, "args": {"tensors": 9, "submitted": [0, 5], "step": 39, "epoch": 0}}))
    long.upto(1.0)
    live, whole = LiveTimeline(long.run), whole_of(long.run)
    index = ready(live)
    assert set(names) <= {index.spans.tensors[code] for code in index.recorded().tensor.tolist()}
    assert ends(index)[1, int(Stage.STEP)] == ends(whole)[1, int(Stage.STEP)]
    while live._piece_of_past():
        pass
    same(ready(live), whole)


def test_a_long_timeline_whose_file_is_replaced_is_read_anew(long: Recording) -> None:
    long.upto(0.9)
    live = LiveTimeline(long.run)
    ready(live)
    for part in long.lines:
        part.unlink()
    long.upto(0.3)
    assert live._piece_of_past() and live.reading is None, "what it knew is void"
    assert ready(live).extent.end_ns == whole_of(long.run).extent.end_ns


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
    part = next(iter(recording.lines))
    part.write_text('[\n{"name":"a","ph":"X","pid":0,"tid":0,"ts":1,"dur":1}\n]\n')
    with pytest.raises(NotFollowed), LiveTimeline(recording.run).held():
        pass
    os.replace(part, part.with_name(part.name + ".gz"))
    with pytest.raises(Unreadable, match=r"^timeline/rank-00000.json.gz: cannot be unpacked"):
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


def test_the_past_is_read_as_long_as_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "LOOKED_AT_S", 0.0)
    pieces = list[int]()

    def piece() -> bool:
        pieces.append(len(pieces))
        return len(pieces) < 3

    reader = backlog.BacklogReader(piece)
    reader.looked_at()
    assert reader._thread is not None
    reader._thread.join(60)
    assert not reader._thread.is_alive() and not pieces, "nobody has looked for longer than that"
    reader.hurry()
    reader.looked_at()
    reader._thread.join(60)
    assert pieces == [0, 1, 2], "until nothing is left, without rests"
    assert not reader.hurrying, "what comes later is another matter"


def test_reading_the_past_rests_until_the_process_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of 8 ms, beside pages that take 2 ms of every second: it goes on after (8 + 2 s) / s = 0.8 %."""
    now, used = [100.0], [0.0]
    monkeypatch.setattr(backlog.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(backlog.time, "process_time", lambda: used[0])
    reader = backlog.BacklogReader(lambda: True)

    def wait(seconds: float) -> bool:
        now[0] += max(seconds, 0.001)
        used[0] += 0.002 * max(seconds, 0.001)
        return False

    monkeypatch.setattr(reader._hurry, "wait", wait)
    used[0] += 0.008
    reader._rest(100.0, 0.0, 0.008)
    assert now[0] - 100 == pytest.approx(0.008 / (backlog.SHARE - 0.002), rel=0.02)
    begun, used[0] = now[0], used[0] + 1000
    reader._rest(begun, used[0] - 1000, 0.008)
    assert now[0] - begun == pytest.approx(0.008 / backlog.LEAST_SHARE, rel=0.02), "pages alone take more"
