"""Traces of earlier versions, whose spans have `epoch` and `plan`, are read like those with today's keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ringtune.timeline.merging.merge import merge
from ringtune.timeline.reading.interpretation import read_events
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import Instant, Trace
from tests.timeline.helpers import ENGINES, Engine, rows, writing_by

# ruff: noqa: E501 - lines as they stand in files
LINES = (
    '{"name":"ringtune_part","ph":"M","pid":0,"tid":0,"args":{"format":1,"rank":0,"size":1,"host":"h","job":"j"}}',
    '{"name":"ringtune_tensors","ph":"M","pid":0,"tid":0,"args":{"id":1,"names":["a","b"],"bytes":[4,8]}}',
    '{"name":"KNOBS","cat":"knobs","ph":"i","s":"p","pid":0,"tid":8,"ts":1.000,"args":{"epoch":3,"fusion_bytes":64,"plan":1}}',
    '{"name":"NEGOTIATE_ALLREDUCE","cat":"negotiate","ph":"X","pid":0,"tid":0,"ts":2.000,"dur":1.000,"args":{"tensors":1,"submitted":[0,5],"queued_ns":9,"dtype":"float32","plan":1,"batch":7,"step":2,"epoch":3}}',
    '{"name":"RING_ALLREDUCE","cat":"communicate","ph":"X","pid":0,"tid":3,"ts":4.000,"dur":1.000,"args":{"tensor":"a +1","bytes":12,"dtype":"float32","plan":1,"peer":0,"batch":7,"step":2,"epoch":3}}',
    '{"name":"WAIT","cat":"wait","ph":"X","pid":0,"tid":5,"ts":5.000,"dur":1.000,"args":{"bytes":0,"step":2,"epoch":3}}',
    '{"name":"CYCLE_START","cat":"cycle","ph":"i","s":"p","pid":0,"tid":8,"ts":6.000,"args":{"step":2,"epoch":3}}',
    '{"name":"ringtune_end","ph":"M","pid":0,"tid":0,"args":{"recorded":7,"dropped":0}}',
)  # fmt: skip


def part(folder: Path, *, today: bool) -> Path:
    text = "[\n" + ",\n".join(LINES) + "\n]\n"
    if today:
        text = text.replace('"epoch"', '"knobs_version"').replace('"plan"', '"step_schedule"')
    folder.mkdir()
    path = folder / "rank-00000.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("reader", [read, read_events])
def test_spans_and_knobs_are_those_of_todays_keys(reader: Callable[[Path], Trace], tmp_path: Path) -> None:
    before, now = reader(part(tmp_path / "before", today=False)), reader(part(tmp_path / "now", today=True))
    assert set(before.spans.knobs_version.tolist()) == {3}
    assert int((before.spans.fact("step_schedule", 0) == 1).sum()) == 5
    assert rows(before.spans) == rows(now.spans)
    args = {"knobs_version": 3, "fusion_bytes": 64, "step_schedule": 1}
    assert before.instants == now.instants == (Instant("KNOBS", "knobs", 0, 1000, args),)
    assert before.skipped == now.skipped == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_merge_writes_todays_keys(engine: Engine, tmp_path: Path) -> None:
    for name in ("before", "now"):
        with writing_by(engine):
            merge([part(tmp_path / name, today=name == "now")], tmp_path / f"{name}.json")
    assert (tmp_path / "before.json").read_bytes() == (tmp_path / "now.json").read_bytes()
    assert b"knobs_version" in (tmp_path / "before.json").read_bytes()
