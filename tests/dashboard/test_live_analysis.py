"""Analyses of jobs that go on: what comes step by step is what an analysis of all says in the end."""

from __future__ import annotations

import numpy as np
import pytest

from ringtune.dashboard.data import communication as data
from ringtune.dashboard.data.analysis import Analysis, analyse
from ringtune.dashboard.data.lateness import growing_width, late_map
from ringtune.dashboard.data.live import analysis as live_analysis
from ringtune.dashboard.data.live.analysis import LiveAnalysis
from ringtune.dashboard.data.live.steps import last_step, newest_steps, steps_between
from ringtune.dashboard.data.live.timeline import LiveTimeline
from ringtune.dashboard.data.timeline import trace
from ringtune.timeline.analysis.steps import select_steps
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import Stage
from tests.dashboard.folders import Recording

pytestmark = pytest.mark.usefixtures("every_look_counts")


def whole(recording: Recording, upto: int) -> Trace:
    """All that is recorded of the steps up to one."""
    found, _ = trace.read_all(recording.run, trace.sources(recording.run))
    return select_steps(found, None, upto + 1)


def rows(found: Analysis) -> list[tuple[int, ...]]:
    """Who was late in which step and by what."""
    names = ("late_step", "late_cause", "late_rank", "late_ns")
    return sorted(zip(*(found.columns[name].tolist() for name in names), strict=True))


def test_lateness_that_comes_step_by_step_is_that_of_all_steps(recording: Recording) -> None:
    recording.upto(0.3)
    live = LiveAnalysis(LiveTimeline(recording.run))
    begun = live.with_lateness(anew=True)
    for share in (0.4, 0.41, 0.6, 0.95):
        recording.upto(share)
        found = live.with_lateness(anew=False)
        assert (found.first, found.tested) == (0, begun.tested) and found.last > begun.last
        expected = analyse(whole(recording, found.last))
        assert rows(found.analysis) == rows(expected)
        assert found.analysis.columns["step"].tolist() == list(range(found.last + 1))
        for name in ("step_begin_ns", "step_end_ns"):
            assert np.array_equal(found.analysis.columns[name], expected.columns[name]), name
    assert live.with_lateness(anew=False).last == found.last  # a look that finds nothing new adds nothing twice
    assert rows(live.with_lateness(anew=False).analysis) == rows(expected)


def test_sums_that_come_step_by_step_are_those_of_all_steps(recording: Recording) -> None:
    recording.upto(0.3)
    live = LiveAnalysis(LiveTimeline(recording.run))
    live.with_sums(anew=True)
    for share in (0.5, 0.51, 0.95):
        recording.upto(share)
        found = live.with_sums(anew=False)
        expected = analyse(whole(recording, found.last))
        assert data.exposed(found.analysis) == data.exposed(expected)
        assert data.waits(found.analysis) == data.waits(expected)
        assert data.numbers(found.analysis) == data.numbers(expected)
        mine, theirs = data.phases(found.analysis), data.phases(expected)
        assert [one.rank for one in mine] == [one.rank for one in theirs]
        for one, other in zip(mine, theirs, strict=True):
            assert one.busy_ns == pytest.approx(other.busy_ns)


def test_all_steps_are_analysed_together_only_when_that_is_due(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording.upto(0.3)
    live, now = LiveAnalysis(LiveTimeline(recording.run)), [1000.0]
    monkeypatch.setattr(live_analysis.time, "monotonic", lambda: now[0])
    first = live.with_sums(anew=True)
    recording.upto(0.6)
    now[0] += live_analysis.LEAST_INTERVAL_S - 0.1
    assert live.with_sums(anew=True).tested == first.tested  # too early
    now[0] = live._until
    assert live.with_sums(anew=False).tested == first.tested
    again = live.with_sums(anew=True)
    assert again.tested == again.last > first.tested


def test_steps_that_come_are_analysed_without_sorting_them_into_lanes(recording: Recording) -> None:
    recording.upto(0.3)
    timeline = LiveTimeline(recording.run)
    live = LiveAnalysis(timeline)
    before = live.with_lateness(anew=True).last
    moved = timeline._lanes.moved
    recording.upto(0.6)
    assert live.with_lateness(anew=False).last > before and live.with_sums(anew=False).last > before
    assert timeline._lanes.moved == moved
    last = live.with_sums(anew=False).last
    with timeline.held() as index:
        assert timeline._lanes.moved > moved and last_step(index) == last


def test_steps_that_are_not_kept_come_from_the_lanes(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringtune.dashboard.data.live.recent.MOST_SPANS", 50)
    recording.upto(0.3)
    live = LiveAnalysis(LiveTimeline(recording.run))
    live.with_lateness(anew=True)
    recording.upto(0.9)
    found = live.with_lateness(anew=False)
    assert rows(found.analysis) == rows(analyse(whole(recording, found.last)))


def test_a_timeline_that_is_read_anew_is_analysed_anew(recording: Recording) -> None:
    recording.upto(0.8)
    live = LiveAnalysis(LiveTimeline(recording.run))
    assert live.with_lateness(anew=True).last > 0
    for part in recording.parts:
        part.unlink()
    recording.upto(0.3)
    found = live.with_lateness(anew=False)
    assert found.last == found.tested
    assert rows(found.analysis) == rows(analyse(whole(recording, found.last)))


def test_of_a_long_job_the_newest_steps_are_taken(recording: Recording) -> None:
    recording.upto(0.9)
    with LiveTimeline(recording.run).held() as index:
        last, spans = last_step(index), len(newest_steps(index, 1 << 60).spans)
        found = newest_steps(index, spans // 4)
        steps = np.unique(found.spans.step)
        assert steps[-1] == last and spans // 8 < len(found.spans) < spans // 2
        assert steps.tolist() == list(range(int(steps[0]), last + 1))
        some = steps_between(index, last - 3, last - 1).spans
        assert set(some.step.tolist()) == {last - 2, last - 1}
        assert len(some) == int(np.isin(index.recorded().step, [last - 2, last - 1]).sum())


def test_a_job_without_steps_is_analysed_as_a_whole(recording: Recording) -> None:
    for content in recording.parts.values():
        content.spans = content.spans.take(~content.spans.in_stage(Stage.STEP))
    recording.upto(0.5)
    live = LiveAnalysis(LiveTimeline(recording.run))
    found = live.with_sums(anew=True)
    assert (found.first, found.last) != (0, 0) and found.analysis.document["summary"]["span_count"] > 0


@pytest.mark.parametrize(("steps", "wide"), [(1, 1), (200, 1), (201, 2), (400, 2), (401, 4), (50_000, 256)])
def test_columns_of_a_map_that_grows_stand_for_powers_of_two(steps: int, wide: int) -> None:
    assert growing_width(steps) == wide


def test_the_end_of_a_map_is_that_of_the_whole_map(recording: Recording) -> None:
    recording.upto(1.0)
    found = LiveAnalysis(LiveTimeline(recording.run)).with_lateness(anew=True)
    everything, end = (late_map(found.analysis, "", steps, 4) for steps in ((0, found.last), (20, found.last)))
    assert everything is not None and end is not None
    assert end.steps == everything.steps[5:]
    assert np.array_equal(end.mean_ns, everything.mean_ns[:, 5:])
