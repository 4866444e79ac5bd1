"""Timelines of jobs that pack what they record: followed like others, and the result is that of reading all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringtune.dashboard.data.live import backlog
from ringtune.dashboard.data.live import timeline as live_timeline
from ringtune.dashboard.data.live.timeline import LiveTimeline
from ringtune.timeline.reading import following, following_packed
from tests.dashboard.folders import Recording
from tests.dashboard.test_timeline_live import ready, same, whole_of

pytestmark = pytest.mark.usefixtures("every_look_counts")


@pytest.mark.parametrize("block", [20_000, 4 << 20])
def test_packed_parts_that_are_read_as_they_grow_are_those_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(following, "BLOCK_BYTES", block)
    monkeypatch.setattr(following_packed, "BLOCK_BYTES", block)
    recording = Recording(tmp_path, packed=True)
    live = LiveTimeline(recording.run)
    for share in (0.05, 0.3, 0.31, 0.9, 1.0):
        recording.upto(share)
        same(ready(live), whole_of(recording.run))


def test_of_a_long_packed_timeline_the_newest_is_there_at_once_and_the_rest_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in (("AT_ONCE_BYTES", 10_000), ("NEWEST_BYTES", 12_000), ("LEAST_BYTES", 1000)):
        monkeypatch.setattr(live_timeline, name, limit)
    monkeypatch.setattr(backlog.BacklogReader, "looked_at", lambda self: None)
    packed = Recording(tmp_path / "packed", packed=True)
    packed.upto(0.5)
    packed.upto(0.9)
    live, whole = LiveTimeline(packed.run), whole_of(packed.run)
    index = ready(live)
    assert 0 < len(index.recorded()) < len(whole.recorded()) / 2 and live.reading is not None
    known, of_all = index.step_range(), whole.step_range()
    assert known is not None and of_all is not None and known[1] == of_all[1]
    for share in (0.9, 1.0):
        packed.upto(share)
        ready(live)
        while live.reading is not None:
            assert live._piece_of_past()
        same(ready(live), whole_of(packed.run))
