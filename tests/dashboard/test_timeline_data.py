from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune import layout
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.dashboard.data.timeline.shapes import PIXELS, SHAPE_LIMIT, Window, blocks, blocks_behind
from ringtune.timeline.merging.merge import merge_run
from ringtune.timeline.spans import COLUMN_TYPES, SpanTable, Trace, concatenate, empty_table
from ringtune.timeline.synthetic.generate import Schedule
from ringtune.timeline.vocabulary import Stage
from tests.timeline.generated_run import generate_run

PLAN = Schedule(ranks=3, steps=8, knob_change_step=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate_run(tmp_path_factory.mktemp("timeline"), "trace", PLAN)


@pytest.fixture(scope="module")
def index(run: Path) -> TimelineIndex:
    return trace.load(run, trace.sources(run))


def table(rows: list[tuple[int, int]], stage: Stage = Stage.COMMUNICATE) -> SpanTable:
    columns = {name: np.zeros(len(rows), dtype=kind) for name, kind in COLUMN_TYPES.items()}
    columns["begin_ns"] = np.array([begin for begin, _ in rows], dtype=np.int64)
    columns["end_ns"] = np.array([end for _, end in rows], dtype=np.int64)
    columns["stage"] = np.full(len(rows), int(stage), dtype=np.uint8)
    return SpanTable(**columns, names=("RING",), tensors=("",))


def built(spans: SpanTable) -> TimelineIndex:
    return TimelineIndex.build(Trace(spans, (), (), "merged", "job"))


def test_parts_and_merged_file_give_the_same_picture(run: Path, index: TimelineIndex, tmp_path: Path) -> None:
    merged = merge_run(run, tmp_path / layout.TIMELINE_FILE).output
    other = trace.load(tmp_path, [merged])
    ours, theirs = index.view(Query()), other.view(Query())
    assert len(ours.lanes) == len(theirs.lanes) == 3 * 7
    assert ours.spans == theirs.spans == len(index.spans)
    assert np.array_equal(np.sort(ours.shapes.begin_ns), np.sort(theirs.shapes.begin_ns))


def test_lanes_go_by_rank_then_phase(index: TimelineIndex) -> None:
    labels = [(lane.rank, lane.stage.label) for lane in index.lanes[:8]]
    order = ["step", "negotiate", "queue", "copy_in", "communicate", "copy_out", "wait"]
    assert labels == [(0, label) for label in order] + [(1, "step")]


def test_a_small_trace_is_drawn_span_by_span(index: TimelineIndex) -> None:
    view = index.view(Query())
    assert len(view.shapes) == len(index.spans) == view.spans
    assert sorted(view.shapes.span.tolist()) == list(range(len(index.spans)))
    assert (view.shapes.share == 1).all()


def test_a_window_holds_exactly_what_touches_it(index: TimelineIndex) -> None:
    window = Window(20e6, 40e6)
    shapes = index.view(Query(window)).shapes
    spans = index.spans
    touching = np.flatnonzero((spans.begin_ns <= window.end_ns) & (spans.end_ns >= window.begin_ns))
    assert set(touching.tolist()) <= set(shapes.span.tolist())


def test_ranks_are_chosen(index: TimelineIndex) -> None:
    assert {lane.rank for lane in index.view(Query(ranks=(1,))).lanes} == {1}


def test_blocks_say_how_much_they_cover() -> None:
    # 3 spans of 10 ns with gaps of 10 ns, far from a fourth: at pixels of 100 ns they are one block.
    index = built(table([(0, 10), (20, 30), (40, 50), (90_000, 100_000)]))
    view = index.view(Query(Window(0, 100_000)), limit=2)
    shapes = view.shapes
    assert shapes.count.tolist() == [3, 1]
    assert shapes.span.tolist() == [-1, 3]
    assert (shapes.begin_ns.tolist(), shapes.end_ns.tolist()) == ([0, 90_000], [50, 100_000])
    assert shapes.share.tolist() == [30 / 50, 1.0]


spans_lists = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    min_size=1,
    max_size=200,
)


@settings(max_examples=60, deadline=None)
@given(spans_lists, st.integers(1, 100), st.sampled_from([Stage.COMMUNICATE, Stage.NEGOTIATE]))
def test_every_span_is_in_exactly_one_shape(rows: list[tuple[int, int]], limit: int, stage: Stage) -> None:
    index = built(table(rows, stage))
    view = index.view(Query(), limit)
    shapes = view.shapes
    assert shapes.count.sum() == len(rows) == view.spans
    assert ((shapes.share >= 0) & (shapes.share <= 1)).all()
    assert shapes.begin_ns.min() == min(begin for begin, _ in rows)
    assert shapes.end_ns.max() == max(end for _, end in rows)
    single = shapes.span[shapes.span >= 0]
    assert len(np.unique(single)) == len(single)


def test_a_million_spans_answer_with_few_shapes() -> None:
    begins = np.arange(1_000_000) * 1000
    parts = []
    for rank in range(4):
        one = table([])
        count = 250_000
        parts.append(
            replace(
                one,
                **{name: np.zeros(count, dtype=kind) for name, kind in COLUMN_TYPES.items()}
                | {
                    "begin_ns": begins[:count],
                    "end_ns": begins[:count] + 700,
                    "rank": np.full(count, rank, dtype=np.int32),
                    "stage": np.full(count, Stage.COMMUNICATE, dtype=np.uint8),
                },
            )
        )
    index = built(concatenate(parts))
    view = index.view(Query())
    assert len(view.shapes) <= SHAPE_LIMIT
    assert view.spans == view.shapes.count.sum() == 1_000_000
    assert view.shapes.share[view.shapes.count > 1].mean() == pytest.approx(0.7, abs=0.02)
    close = index.view(Query(Window(100e6, 100.2e6), margin=0.5))
    assert (close.shapes.span >= 0).all()
    assert len(close.shapes) > PIXELS / 2


def test_overlapping_spans_lie_in_different_rows() -> None:
    index = built(table([(0, 100), (10, 50), (60, 90), (100, 110)], Stage.NEGOTIATE))
    (lane,) = index.lanes
    assert (lane.row.tolist(), lane.rows) == ([0, 1, 1, 0], 2)


def test_the_search_finds_a_tensor_and_the_batches_that_carried_it(index: TimelineIndex) -> None:
    view = index.view(Query(search="CONV.bias"))
    spans = index.spans
    found = view.shapes.hit
    stages = {Stage(stage) for stage in spans.stage[view.shapes.span[found]].tolist()}
    assert stages == {Stage.NEGOTIATE, Stage.QUEUE, Stage.COPY_IN, Stage.COPY_OUT, Stage.COMMUNICATE}
    assert view.hits == found.sum() == 3 * PLAN.steps * 5
    assert index.view(Query(search="no such")).hits == 0


def test_the_next_match_goes_on_and_around(index: TimelineIndex) -> None:
    seen, at = [], -1.0
    for _ in range(3):
        window = index.next_hit("WAIT", at)
        assert window is not None
        at = (window.begin_ns + window.end_ns) / 2
        seen.append(at)
    assert seen == sorted(seen)
    assert index.next_hit("WAIT", 1e18) == index.next_hit("WAIT", -1)
    assert index.next_hit("nothing", 0) is None


def test_a_step_is_found_on_all_ranks(index: TimelineIndex) -> None:
    window = index.step_window(3)
    assert window is not None
    chosen = (index.spans.stage == Stage.STEP) & (index.spans.step == 3)
    assert window.begin_ns < index.spans.begin_ns[chosen].min()
    assert window.end_ns > index.spans.end_ns[chosen].max()
    assert index.step_window(99) is None
    assert index.step_range() == (0, 7)


def test_an_empty_trace_has_a_view() -> None:
    assert len(built(empty_table()).view(Query()).shapes) == 0


def test_no_timeline_is_an_empty_index(tmp_path: Path) -> None:
    assert trace.sources(tmp_path) == []
    assert len(trace.load(tmp_path, []).spans) == 0


def test_a_broken_part_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "broken", Schedule(ranks=2, steps=2))
    layout.timeline_part(run, 1).write_text("no trace at all")
    index = trace.load(run, trace.sources(run))
    assert index.ranks == (0,)
    assert any("rank-00001.spans" in problem for problem in index.problems)
    layout.timeline_part(run, 0).write_text("no trace at all")
    with pytest.raises(Unreadable):
        trace.load(run, trace.sources(run))


def test_a_truncated_part_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "killed", Schedule(ranks=1, steps=20))
    path = layout.timeline_part(run, 0)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert len(trace.load(run, trace.sources(run)).spans) > 0


def test_a_timeline_elsewhere_is_not_followed(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "linked", Schedule(ranks=1, steps=1))
    layout.timeline_file(run).symlink_to("/etc/passwd")
    with pytest.raises(Unreadable, match="link out of the run's folder"):
        trace.load(run, trace.sources(run))


@pytest.mark.parametrize("pixel_ns", [1.0, 2e5, 1e7])
def test_lanes_taken_together_have_the_blocks_of_each_alone(index: TimelineIndex, pixel_ns: float) -> None:
    window = index.clamped(None)
    ends = [int(lane.end[7 * number % len(lane)]) for number, lane in enumerate(index.lanes)]
    together = blocks_behind(index.lanes, ends, window.end_ns, pixel_ns)
    assert len(together)
    for number, (lane, end) in enumerate(zip(index.lanes, ends, strict=True)):
        alone = blocks(number, lane, Window(float(end), window.end_ns), pixel_ns)
        mine, later = together.lane == number, alone.end_ns > end
        for name in ("begin_ns", "end_ns", "count", "share", "span", "row", "first"):
            assert np.array_equal(getattr(together, name)[mine], getattr(alone, name)[later]), (lane.stage, name)


def test_nothing_behind_the_ends_of_lanes_is_no_shape(index: TimelineIndex) -> None:
    ends = [int(lane.reach[-1]) for lane in index.lanes]
    assert len(blocks_behind(index.lanes, ends, index.clamped(None).end_ns, 1.0)) == 0


@pytest.mark.parametrize(("begin", "end"), [(-1e300, 1e300), (5.5, 17.5), (6.0, 18.0), (float("-inf"), float("inf"))])
def test_a_window_may_begin_and_end_between_two_nanoseconds(begin: float, end: float) -> None:
    (lane,) = built(table([(n, n + 1) for n in range(0, 30, 2)])).lanes
    part = lane.touching(begin, end)
    touching = [n for n in range(15) if 2 * n + 1 >= begin and 2 * n <= end]
    assert list(range(part.start, part.stop)) == touching
