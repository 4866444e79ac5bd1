"""The native writer of merged files writes what the plain one does; parts in JSON say what parts of records say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringtune.timeline.merging.merge import merge
from ringtune.timeline.merging.part_writer import write_part
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import Instant, PartInfo, concatenate
from ringtune.timeline.synthetic.generate import HostClock, Schedule, generate
from ringtune.timeline.vocabulary import Stage
from tests.timeline.helpers import (
    ENGINES,
    SKEWED,
    TWO_HOSTS,
    Engine,
    events_of,
    four_ranks,
    make_spans,
    rows,
    writing_by,
)
from tests.timeline.json_parts import write_json_parts
from tests.timeline.scenario import Scenario, simulate
from tests.timeline.test_merge import check_structure


def both(parts: list[Path], folder: Path) -> tuple[Path, Path]:
    """The same parts merged plainly and natively."""
    for engine in ENGINES:
        with writing_by(engine):
            merge(parts, folder / f"{engine}.json")
    return folder / "plain.json", folder / "native.json"


JOBS: dict[str, Any] = {
    "one host": lambda: generate(Schedule(ranks=3, late_rank=2, late_ns=700_001, knob_change_step=2)),
    "two hosts": lambda: generate(four_ranks(steps=6, late_rank=3, late_ns=2_000_000, dropped={1: 5})),
    "drift": lambda: generate(four_ranks(clocks={"host-b": HostClock(10**12, -80.0)})),
    "simulated": lambda: simulate(Scenario(hosts=TWO_HOSTS, clocks=SKEWED, slow_link={1: 1000}))[0],
    "names": lambda: generate(Schedule(tensors=(('a "quoted"', 1), ("back\\slash", 2), ("ünï ✓\ttab", 3), ("", 4)))),
}


@pytest.mark.parametrize("job", JOBS)
def test_both_writers_give_the_same_trace(job: str, tmp_path: Path) -> None:
    plain, native = both(JOBS[job]().write(tmp_path / "parts"), tmp_path)
    check_structure(native)
    expected, found = read(plain), read(native)
    assert rows(found.spans) == rows(expected.spans)
    assert found.instants == expected.instants
    assert (found.parts, found.origin_ns, found.size) == (expected.parts, expected.origin_ns, expected.size)
    assert json.loads(native.read_bytes()) == json.loads(plain.read_bytes())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["native.json", "parts", "plain.json"]


@pytest.mark.parametrize("job", JOBS)
def test_parts_in_json_say_the_same(job: str, tmp_path: Path) -> None:
    made = JOBS[job]()
    for name, parts in (("old", write_json_parts(made, tmp_path / "old")), ("new", made.write(tmp_path / "new"))):
        merge(parts, tmp_path / f"{name}.json")
    old, new = (json.loads((tmp_path / f"{name}.json").read_bytes()) for name in ("old", "new"))
    assert old == new


def test_steps_are_written_with_their_numbers_and_read_by_one_name(tmp_path: Path) -> None:
    """Also those of files whose steps have no number, and beside a range of that name, which stays as it is."""
    spans = concatenate([make_spans([(0, 10), (10, 20), (15, 30)], stage=stage) for stage in (Stage.STEP, Stage.RANGE)])
    spans = replace(spans, names=("STEP",), step=np.array([7, 8, 9, 7, 8, 9]))
    part = tmp_path / "rank-00000.spans"
    write_part(part, PartInfo(rank=0), spans, ())
    for file in both([part], tmp_path):
        named = [(event["cat"], event["ph"], event["name"]) for event in events_of(file) if event["ph"] in "Xb"]
        assert named == [
            ("step", "X", "step 7"), ("range", "X", "STEP"), ("step", "X", "step 8"), ("range", "X", "STEP"),
            ("step", "b", "STEP"), ("range", "b", "STEP"),
        ]  # fmt: skip
        found = read(file).spans
        assert set(found.name_texts()) == {"STEP"}
        older = tmp_path / "older.json"
        older.write_text(re.sub('"name":"step [0-9]+"', '"name":"STEP"', file.read_text()))
        assert rows(read(older).spans) == rows(found)


def test_pairs_with_an_identity_of_the_whole_trace_are_read_as_well(tmp_path: Path) -> None:
    """As traces have them that were merged before, and those of other tools."""
    merged, _ = both(generate(Schedule(ranks=2)).write(tmp_path / "parts"), tmp_path)
    older = tmp_path / "older.json"
    text = merged.read_text()
    assert '"id2":{"local":' in text
    older.write_text(re.sub(r'"id2":\{"local":(\d+)\}', r'"id":\1', text))
    assert rows(read(older).spans) == rows(read(merged).spans)


def test_arrows_and_marks_are_the_same(tmp_path: Path) -> None:
    spans = make_spans([(5, 5), (9, 9)], stage=Stage.CYCLE)
    write_part(tmp_path / "rank-00000.spans", PartInfo(rank=0, size=2), spans, [])
    runs = make_spans([(5, 8)], stage=Stage.COMMUNICATE, rank=1)
    write_part(tmp_path / "rank-00001.spans", PartInfo(rank=1, size=2), runs, [])
    plain, native = (
        events_of(path) for path in both([tmp_path / f"rank-0000{rank}.spans" for rank in (0, 1)], tmp_path)
    )
    assert len([event for event in native if event["ph"] == "i"]) == 2 and native == plain
    job = generate(Schedule(ranks=3))
    plain, native = (events_of(path) for path in both(job.write(tmp_path / "parts"), tmp_path))
    arrows = [event for event in native if event["ph"] in "stf"]
    assert len(arrows) == 3 * job.schedule.steps * len(job.schedule.batches)
    assert arrows == [event for event in plain if event["ph"] in "stf"]


@pytest.mark.parametrize("damage", ["torn", "odd value", "no line an event", "backwards", "strange event"])
def test_odd_parts_in_json_are_read_as_far_as_they_go(damage: str, tmp_path: Path) -> None:
    parts = write_json_parts(generate(Schedule()), tmp_path / "parts")
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
    whole = len(generate(Schedule()).spans[1])
    lost = {"torn": range(1, 9), "odd value": range(1, 2), "backwards": range(1, 2)}.get(damage, range(1))
    assert whole - len(read(parts[1]).spans) in lost
    plain, native = both(parts, tmp_path)
    assert json.loads(native.read_bytes()) == json.loads(plain.read_bytes())


def test_the_order_of_parts_does_not_matter(tmp_path: Path) -> None:
    parts = generate(four_ranks(steps=20)).write(tmp_path / "parts")
    _, native = both(parts, tmp_path)
    merge(reversed(parts), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == native.read_bytes()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_without_spans_and_a_job_without_any(engine: Engine, tmp_path: Path) -> None:
    empty = make_spans([], stage=Stage.WAIT)
    knobs = [Instant("KNOBS", "knobs", 0, 100, {"knobs_version": 1, "fusion_bytes": 1 << 20})]
    parts = [tmp_path / f"rank-0000{rank}.spans" for rank in (0, 1)]
    write_part(parts[0], PartInfo(rank=0, size=2), empty, knobs)
    with writing_by(engine):
        merge(parts[:1], tmp_path / "out.json")
        assert [found.name for found in read(tmp_path / "out.json").instants] == ["KNOBS"]
        write_part(parts[1], PartInfo(rank=1, size=2), make_spans([(1, 2)], stage=Stage.WAIT), [])
        merge(parts, tmp_path / "out.json")
    assert len(read(tmp_path / "out.json").spans) == 1
