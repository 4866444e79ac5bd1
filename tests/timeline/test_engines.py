"""Merging and reading in a database or natively gives what the plain way gives, and leaves to it whatever is odd."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ringtune.timeline.merging import bulk_merge, bulk_parts, native_merge
from ringtune.timeline.merging.merge import Engine, merge
from ringtune.timeline.merging.writer import write_part
from ringtune.timeline.reading import native_lines, reader
from ringtune.timeline.reading.bulk_read import read_in_bulk
from ringtune.timeline.reading.native_read import read_natively
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import Instant, PartInfo, Trace
from ringtune.timeline.synthetic.generate import HostClock, Schedule, generate
from ringtune.timeline.vocabulary import Stage
from tests.timeline.helpers import QUICK, SKEWED, TWO_HOSTS, can, events_of, four_ranks, make_spans, rows
from tests.timeline.scenario import Scenario, simulate
from tests.timeline.test_merge import check_structure


@pytest.fixture(params=QUICK)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Every test that asks for it runs in all engines for large traces."""
    return can(request.param)


def both(parts: list[Path], folder: Path, engine: Engine) -> tuple[Path, Path]:
    """The same parts merged in memory and quickly."""
    merge(parts, folder / "plain.json", engine="memory")
    merge(parts, folder / "quick.json", engine=engine)
    return folder / "plain.json", folder / "quick.json"


def read_slowly(path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    with monkeypatch.context() as patch:
        patch.setattr(reader, "BULK_BYTES", 2**62)
        return read(path)


def read_quickly(path: Path, engine: Engine) -> Trace:
    found = read_natively(path) if engine == "native" else read_in_bulk(path)
    assert found is not None, "left to the event-by-event reader"
    return found


JOBS: dict[str, Any] = {
    "one host": lambda: generate(Schedule(ranks=3, late_rank=2, late_ns=700_001, knob_change_step=2)),
    "two hosts": lambda: generate(four_ranks(steps=6, late_rank=3, late_ns=2_000_000, dropped={1: 5})),
    "drift": lambda: generate(four_ranks(clocks={"host-b": HostClock(10**12, -80.0)})),
    "simulated": lambda: simulate(Scenario(hosts=TWO_HOSTS, clocks=SKEWED, slow_link={1: 1000}))[0],
    "names": lambda: generate(Schedule(tensors=(('a "quoted"', 1), ("back\\slash", 2), ("ünï ✓\ttab", 3), ("", 4)))),
}


@pytest.mark.parametrize("job", JOBS)
def test_both_engines_give_the_same_trace(
    job: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = JOBS[job]().write(tmp_path / "parts")
    for module in (bulk_parts, native_merge):  # every part is one that is read quickly
        monkeypatch.setattr(module, "read_events", _never)
    plain, quick = both(parts, tmp_path, engine)
    check_structure(quick)
    expected = read_slowly(plain, monkeypatch)
    for found in (read_slowly(quick, monkeypatch), read_quickly(quick, engine), read_quickly(plain, engine)):
        assert rows(found.spans) == rows(expected.spans)
        assert found.instants == expected.instants
        assert (found.parts, found.origin_ns, found.size) == (expected.parts, expected.origin_ns, expected.size)
    assert json.loads(quick.read_bytes())["otherData"] == json.loads(plain.read_bytes())["otherData"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "plain.json", "quick.json"]


def _never(path: Path) -> Trace:
    raise AssertionError(f"{path} was read event by event")


def test_parts_are_read_alike(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in JOBS["two hosts"]().write(tmp_path):
        slow, quick = read_slowly(path, monkeypatch), read_quickly(path, engine)
        assert rows(quick.spans) == rows(slow.spans)
        assert (quick.parts, quick.instants, quick.source) == (slow.parts, slow.instants, slow.source)


def test_pairs_with_an_identity_of_the_whole_trace_are_read_as_well(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As traces have them that were merged before, and those of other tools."""
    merged, _ = both(generate(Schedule(ranks=2)).write(tmp_path / "parts"), tmp_path, engine)
    older = tmp_path / "older.json"
    text = merged.read_text()
    assert '"id2":{"local":' in text
    older.write_text(re.sub(r'"id2":\{"local":(\d+)\}', r'"id":\1', text))
    expected = rows(read_slowly(merged, monkeypatch).spans)
    assert rows(read_slowly(older, monkeypatch).spans) == rows(read_quickly(older, engine).spans) == expected


def test_arrows_and_marks_are_the_same(engine: Engine, tmp_path: Path) -> None:
    spans = make_spans([(5, 5), (9, 9)], stage=Stage.CYCLE)
    write_part(tmp_path / "rank-00000.json", PartInfo(rank=0, size=2), spans, [])
    runs = make_spans([(5, 8)], stage=Stage.COMMUNICATE, rank=1)
    write_part(tmp_path / "rank-00001.json", PartInfo(rank=1, size=2), runs, [])
    parts = [tmp_path / f"rank-0000{rank}.json" for rank in (0, 1)]
    plain, quick = (events_of(path) for path in both(parts, tmp_path, engine))
    assert [event for event in quick if event["ph"] == "i"] == [event for event in plain if event["ph"] == "i"]
    job = generate(Schedule(ranks=3))
    plain, quick = (events_of(path) for path in both(job.write(tmp_path / "parts"), tmp_path, engine))
    arrows = [[event for event in events if event["ph"] in "stf"] for events in (plain, quick)]
    assert len(arrows[0]) == 3 * job.schedule.steps * len(job.schedule.batches)
    for events in arrows:
        first = min(event["id"] for event in events)
        for event in events:
            event["id"] -= first
    assert arrows[0] == arrows[1]


@pytest.mark.parametrize("damage", ["torn", "odd value", "no line an event", "backwards", "strange event"])
def test_odd_parts_are_read_the_patient_way(damage: str, engine: Engine, tmp_path: Path) -> None:
    parts = generate(Schedule()).write(tmp_path / "parts")
    data = parts[1].read_bytes()
    events = json.loads(data)
    if damage == "torn":
        parts[1].write_bytes(data[:-700])
    elif damage == "odd value":
        parts[1].write_bytes(data.replace(b'"dur":20.0', b'"dur":"much"', 1))
    elif damage == "no line an event":
        parts[1].write_text(json.dumps(events, indent=1))
    elif damage == "backwards":
        parts[1].write_bytes(data.replace(b'"dur":20.0', b'"dur":-20.0', 1))
    else:
        parts[1].write_text(json.dumps([*events, {"ph": "Z", "name": "what"}, 17]))
    plain, quick = both(parts, tmp_path, engine)
    assert rows(read(quick).spans) == rows(read(plain).spans)
    assert json.loads(quick.read_bytes())["otherData"] == json.loads(plain.read_bytes())["otherData"]


def test_large_jobs_are_sorted_in_pieces(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = generate(four_ranks(steps=20)).write(tmp_path / "parts")
    whole, _ = both(parts, tmp_path, engine)
    monkeypatch.setattr(bulk_merge, "SLICE_SPANS", 150)
    monkeypatch.setattr(native_lines, "BLOCK_RECORDS", 5)
    monkeypatch.setattr(native_lines, "PIECE_BYTES", 777)
    merge(parts, tmp_path / "pieces.json", engine=engine)
    merge(reversed(parts), tmp_path / "again.json", engine=engine)
    assert (tmp_path / "pieces.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    assert (tmp_path / "pieces.json").read_bytes() == (tmp_path / "quick.json").read_bytes()
    assert rows(read(tmp_path / "pieces.json").spans) == rows(read(whole).spans)


def test_a_rank_without_spans_and_a_job_without_any(engine: Engine, tmp_path: Path) -> None:
    empty = make_spans([], stage=Stage.WAIT)
    knobs = [Instant("KNOBS", "knobs", 0, 100, {"knobs_version": 1, "fusion_bytes": 1 << 20})]
    write_part(tmp_path / "rank-00000.json", PartInfo(rank=0, size=2), empty, knobs)
    merge([tmp_path / "rank-00000.json"], tmp_path / "out.json", engine=engine)
    assert [found.name for found in read(tmp_path / "out.json").instants] == ["KNOBS"]
    write_part(tmp_path / "rank-00001.json", PartInfo(rank=1, size=2), make_spans([(1, 2)], stage=Stage.WAIT), [])
    merge([tmp_path / "rank-00000.json", tmp_path / "rank-00001.json"], tmp_path / "out.json", engine=engine)
    assert len(read(tmp_path / "out.json").spans) == 1
