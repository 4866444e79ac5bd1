"""Large timelines: prepared once on the disk, answered from levels, equal to what memory would answer."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune import layout
from ringtune.dashboard.context import Context
from ringtune.dashboard.data.files import Unreadable, signature
from ringtune.dashboard.data.runs import RunsFolder
from ringtune.dashboard.data.timeline import prepare, store, trace
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.dashboard.data.timeline.levels import WIDEN
from ringtune.dashboard.data.timeline.prepare import Preparing
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.synthetic.generate_long import generate_long, schedule_of
from ringtune.timeline.vocabulary import Stage
from tests.dashboard.test_timeline_data import built, table


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a merged trace of some 50,000 spans."""
    folder = tmp_path_factory.mktemp("large") / "long-20260101-000000"
    job = generate_long(*schedule_of(50_000, 2))
    merge(job.write(folder / "timeline"), layout.timeline_file(folder))
    layout.run_file(folder).write_text('{"format": 1, "name": "long", "status": "finished", "size": 2}')
    return folder


@pytest.fixture(scope="module")
def index(run: Path) -> TimelineIndex:
    return trace.load(run, trace.sources(run))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trace, "LARGE_BYTES", 1)
    return tmp_path / "cache"


def test_levels_hold_every_span_once_and_the_time_it_covers() -> None:
    random = np.random.default_rng(5)
    begins = np.cumsum(random.integers(1, 4000, 60_000))
    moments = zip(begins.tolist(), random.integers(0, 3000, 60_000).tolist(), strict=True)
    rows = [(begin, begin + length) for begin, length in moments]
    (lane,) = built(table(rows)).lanes
    assert len(lane.levels) > 1
    covered = 0
    reach = 0
    for begin, end in rows:
        covered += max(0, end - max(begin, reach))
        reach = max(reach, end)
    for level in lane.levels:
        assert level.count.sum() == len(rows)
        before = np.concatenate(([0], np.maximum(level.begin[1:] - level.reach[:-1], 0)))
        assert level.reach[-1] - level.begin[0] - before.sum() - level.gap.sum() == covered
        assert np.array_equal(level.first, np.concatenate(([0], np.cumsum(level.count)[:-1])))
    widths = [level.width_ns for level in lane.levels]
    assert all(wide // WIDEN == narrow for narrow, wide in pairwise(widths))


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 0.9), st.floats(1e-5, 1), st.integers(20, 2000))
def test_blocks_from_levels_stand_for_the_spans_of_the_window(
    index: TimelineIndex, begin: float, length: float, limit: int
) -> None:
    whole = index.extent
    start = whole.begin_ns + begin * whole.length_ns
    window = Window(start, start + length * whole.length_ns)
    shapes = index.view(Query(window), limit).shapes
    for number, lane in enumerate(index.lanes):
        mine = shapes.lane == number
        part = lane.touching(window.begin_ns, window.end_ns)
        # Every span that touches is in a shape; what lies beside the window may come along with its item.
        assert shapes.count[mine].sum() >= part.stop - part.start
        assert np.array_equal(shapes.first[mine][1:], (shapes.first + shapes.count)[mine][:-1])
        blocks = mine & (shapes.span < 0)
        assert ((shapes.share[blocks] >= 0) & (shapes.share[blocks] <= 1)).all()


def test_what_is_prepared_answers_as_memory_does(run: Path, index: TimelineIndex, cache: Path) -> None:
    folder = store.place_of(run, signature(trace.sources(run)))
    assert folder.is_relative_to(cache)
    said: list[tuple[float, str]] = []
    prepare.prepare(run, folder, lambda share, words: said.append((share, words)))
    stored = store.open_index(folder)
    assert stored is not None
    for query in (
        Query(),
        Query(index.step_window(9)),
        Query(search="layer3.qkv", ranks=(1,)),
        Query(stages=(Stage.WAIT,)),
    ):
        ours, theirs = index.view(query), stored.view(query)
        assert (ours.spans, ours.hits) == (theirs.spans, theirs.hits)
        for column in vars(ours.shapes):
            assert np.array_equal(getattr(ours.shapes, column), getattr(theirs.shapes, column))
    assert (stored.ranks, stored.extent, stored.step_range()) == (index.ranks, index.extent, index.step_range())
    for name, column in stored.path().columns().items():
        assert np.array_equal(column, getattr(index.path(), name))
    shares = [share for share, _ in said]
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] <= 1
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_large_timeline_is_prepared_in_the_background_once(run: Path, cache: Path) -> None:
    context = Context(RunsFolder(run.parent))
    info = context.folder.rows()[0].info
    first = context.timelines.timeline(info)
    assert isinstance(first, Preparing)
    deadline = time.monotonic() + 120
    while isinstance(found := context.timelines.timeline(info), Preparing):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert context.timelines.timeline(info) is found
    # Another dashboard finds it on the disk, at once.
    assert isinstance(Context(RunsFolder(run.parent)).timelines.timeline(info), TimelineIndex)


def test_what_cannot_be_prepared_says_why(tmp_path: Path, cache: Path) -> None:
    run = tmp_path / "odd-20260101-000000"
    run.mkdir()
    layout.run_file(run).write_text('{"format": 1, "name": "odd", "status": "finished", "size": 1}')
    layout.timeline_file(run).write_text("no trace at all")
    context = Context(RunsFolder(tmp_path))
    info = next(row.info for row in context.folder.rows() if row.info.path == run)
    with pytest.raises(Unreadable, match=r"timeline\.json"):
        for _ in range(2400):
            context.timelines.timeline(info)
            time.sleep(0.05)


def test_old_indexes_make_room(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        (folder / "span.npy").write_bytes(b"x" * 100)
        (folder / "span.npy").touch()
        import os

        os.utime(folder, (number, number))
    store.make_room(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index2", "index3"]


def test_a_broken_index_is_no_index(run: Path, cache: Path) -> None:
    folder = store.place_of(run, signature(trace.sources(run)))
    assert store.open_index(folder) is None
    prepare.prepare(run, folder, lambda share, words: None)
    (folder / "span.begin_ns.npy").write_bytes(b"\x93NUMPY broken")
    assert store.open_index(folder) is None
