"""Events that stand for all tensors of a batch, files of one rank that follow one another, and packed ones."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from ringtune.timeline.merging.merge import merge
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import BUS_NAME, COPY_IN_NAME, COPY_OUT_NAME, IN_FLIGHT_NAME, Stage
from tests.timeline.helpers import ENGINES, Engine, writing_by

LISTS = (
    {"id": 1, "names": ["a", 'b "q"'], "bytes": [4, 8]},
    {"id": 2, "names": ["ü"], "bytes": [16]},
)


def batch(at_us: float, **args: Any) -> dict[str, Any]:
    about = {"tensors": 1, "submitted": [0, 500], "queued_ns": 100, "dtype": "float32", "step_schedule": 1, "peer": 1}
    return {
        "name": "NEGOTIATE_ALLREDUCE", "cat": "negotiate", "ph": "X", "pid": 0, "tid": 0, "ts": at_us, "dur": 2.0,
        "args": {**about, "batch": 3, "step": 1, "knobs_version": 2, **args},
    }  # fmt: skip


def copies(at_us: float, stage: Stage = Stage.COPY_IN, **args: Any) -> dict[str, Any]:
    about = {"tensors": 1, "copied": [500, 0], "dtype": "float32", "batch": 3, "step": 1, "knobs_version": 2}
    name = COPY_IN_NAME if stage is Stage.COPY_IN else COPY_OUT_NAME
    return {
        "name": name, "cat": stage.label, "ph": "X", "pid": 0, "tid": int(stage), "ts": at_us, "dur": 0.5,
        "args": {**about, **args},
    }  # fmt: skip


def write(path: Path, events: list[Any], *, number: int = 0, packed: bool = False) -> Path:
    part = {"format": 1, "rank": 0, "size": 1, "host": "h", "job": "j", "unix_ns": 5, "monotonic_ns": 6, "file": number}
    lists = [{"name": "ringtune_tensors", "ph": "M", "pid": 0, "tid": 0, "args": one} for one in LISTS]
    head = {"name": "ringtune_part", "ph": "M", "pid": 0, "tid": 0, "args": part}
    end = {"name": "ringtune_end", "ph": "M", "pid": 0, "tid": 0, "args": {"recorded": 4, "dropped": number}}
    lines = b",\n".join(orjson.dumps(event) for event in [head, *lists, *events, end])
    text = b"[\n" + lines + b"\n]\n"
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    s = trace.spans
    columns = zip(
        s.stage.tolist(), s.tensor_texts(), s.begin_ns.tolist(), s.end_ns.tolist(), s.bytes.tolist(), strict=True
    )
    return list(columns)


def test_a_batch_is_two_spans_a_tensor(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "rank-00000.json", [batch(1.0), batch(9.0, tensors=2, submitted=[0], queued_ns=7)]))
    assert trace.skipped == 0
    assert sorted(rows(trace)) == [
        (Stage.NEGOTIATE, "a", 1000, 3000, 4),
        (Stage.NEGOTIATE, 'b "q"', 1500, 3000, 8),
        (Stage.NEGOTIATE, "ü", 9000, 11000, 16),
        (Stage.QUEUE, "a", 3000, 3100, 4),
        (Stage.QUEUE, 'b "q"', 3000, 3100, 8),
        (Stage.QUEUE, "ü", 11000, 11007, 16),
    ]
    assert trace.spans.fact("peer").tolist() == [1] * 6
    assert set(trace.spans.batch.tolist()) == {3}


def test_a_batch_that_never_began_was_not_queued(tmp_path: Path) -> None:
    event = batch(1.0)
    del event["args"]["queued_ns"]
    trace = read(write(tmp_path / "rank-00000.json", [event]))
    assert [row[0] for row in rows(trace)] == [Stage.NEGOTIATE] * 2


def test_copies_are_one_span_a_tensor_one_after_another(tmp_path: Path) -> None:
    events = [copies(1.0), copies(7.0, Stage.COPY_OUT, copied=[1, 2]), copies(9.0, tensors=2, copied=[7]), batch(2.0)]
    trace = read(write(tmp_path / "rank-00000.json", events))
    assert trace.skipped == 0
    assert sorted(row for row in rows(trace) if row[0] in (Stage.COPY_IN, Stage.COPY_OUT)) == [
        (Stage.COPY_IN, "a", 1000, 1500, 4),
        (Stage.COPY_IN, 'b "q"', 1500, 1500, 8),
        (Stage.COPY_IN, "ü", 9000, 9007, 16),
        (Stage.COPY_OUT, "a", 7000, 7001, 4),
        (Stage.COPY_OUT, 'b "q"', 7001, 7003, 8),
    ]
    spans = trace.spans.of_stage(Stage.COPY_OUT)
    assert set(spans.name_texts()) == {COPY_OUT_NAME}
    assert (set(spans.batch.tolist()), set(spans.step.tolist()), set(spans.knobs_version.tolist())) == ({3}, {1}, {2})
    assert {spans.fact_texts[code] for code in spans.facts.tolist()} == {'"dtype":"float32"'}


@pytest.mark.parametrize("engine", ENGINES)
def test_copies_go_through_a_merge(engine: Engine, tmp_path: Path) -> None:
    part = write(tmp_path / "rank-00000.json", [batch(1.0), copies(4.0), copies(9.0, Stage.COPY_OUT)])
    with writing_by(engine):
        report = merge([part], tmp_path / "merged.json")
    assert (report.spans, report.problems) == (8, ())
    shifted = [(stage, tensor, begin - 1000, end - 1000, size) for stage, tensor, begin, end, size in rows(read(part))]
    assert sorted(rows(read(tmp_path / "merged.json"))) == sorted(shifted)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tensors": 9},
        {"copied": [0]},
        {"copied": [0, "x"]},
        {"copied": [0, -1]},
        {"copied": 5},
        {"copied": [0, 2**63]},
        {"batch": {}},
    ],
)
def test_damaged_copies_are_left_out_alone(wrong: dict[str, Any], tmp_path: Path) -> None:
    trace = read(write(tmp_path / "rank-00000.json", [copies(1.0), copies(5.0, **wrong), batch(9.0)]))
    assert {row[2] for row in rows(trace)} == {1000, 1500, 9000, 9500, 11000}
    assert trace.skipped == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"tensors": 9},
        {"submitted": [0]},
        {"submitted": [0, "x"]},
        {"submitted": 5},
        {"queued_ns": "long"},
        {"tensors": [1]},
        {"batch": {}},
    ],
)
def test_a_damaged_batch_is_left_out_alone(wrong: dict[str, Any], tmp_path: Path) -> None:
    trace = read(write(tmp_path / "rank-00000.json", [batch(1.0), batch(5.0, **wrong)]))
    assert {row[2] for row in rows(trace)} == {1000, 1500, 3000}
    assert trace.skipped == 1


def test_counters_are_kept_with_what_they_count(tmp_path: Path) -> None:
    flight = {"name": IN_FLIGHT_NAME, "cat": "counter", "ph": "C", "pid": 0, "tid": 14, "ts": 4.0}
    counters = [
        {**flight, "args": {"bytes": 77, "operations": 5}},
        {**flight, "name": BUS_NAME, "args": {"bytes_per_s": 10**10}},
    ]
    part = write(tmp_path / "rank-00000.json", [batch(1.0), *counters])
    for engine in ENGINES:
        output = tmp_path / f"merged-{engine}.json"
        with writing_by(engine):
            merge([part], output)
        events = [event for event in orjson.loads(output.read_bytes())["traceEvents"] if event["ph"] == "C"]
        assert [(event["name"], event["ts"], event["args"]) for event in events] == [
            (IN_FLIGHT_NAME, 3.0, {"bytes": 77, "operations": 5}),
            (BUS_NAME, 3.0, {"bytes_per_s": 10**10}),
        ]
        found = read(output).spans.of_stage(Stage.COUNTER)
        assert (found.bytes.tolist(), found.batch.tolist()) == ([77, 10**10], [5, 0])


@pytest.mark.parametrize("engine", ENGINES)
def test_facts_go_through_a_merge(engine: Engine, tmp_path: Path) -> None:
    span = {"name": "RING_ALLREDUCE", "cat": "communicate", "ph": "X", "pid": 0, "tid": 3, "ts": 5.0, "dur": 1.0}
    facts = {"algorithm": "ring", "dtype": "float32", "wire": "float16", "process_set": 2, "step_schedule": 1}
    events = [
        batch(1.0),
        {**span, "args": {"tensor": "a +1", "bytes": 12, **facts, "batch": 3, "step": 1, "knobs_version": 2}},
    ]
    with writing_by(engine):
        merge([write(tmp_path / "rank-00000.json", events)], tmp_path / "merged.json")
    written = [event for event in orjson.loads((tmp_path / "merged.json").read_bytes())["traceEvents"]]
    (run,) = [event for event in written if event.get("cat") == "communicate" and event["ph"] == "X"]
    assert run["args"] == {"tensor": "a +1", "bytes": 12, **facts, "batch": 3, "step": 1, "knobs_version": 2}
    submitted = [event for event in written if event.get("cat") == "negotiate" and event["ph"] == "b"]
    assert [event["args"]["peer"] for event in submitted] == [1, 1]
    again = read(tmp_path / "merged.json").spans
    assert again.fact("process_set", 0).tolist().count(2) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_one_rank_are_one_part(packed: bool, tmp_path: Path) -> None:
    suffix = ".json.gz" if packed else ".json"
    files = [
        write(tmp_path / f"rank-00000{dot}{suffix}", [batch(at)], number=number, packed=packed)
        for number, (dot, at) in enumerate([("", 1.0), (".1", 9.0), (".2", 20.0)])
    ]
    for engine in ENGINES:
        with writing_by(engine):
            report = merge(files[::-1], tmp_path / "merged.json")
        assert (report.spans, report.dropped, len(report.parts), report.parts[0].recorded) == (12, 3, 1, 12)
    trace = read(tmp_path / "merged.json")
    assert sorted(set(trace.spans.of_stage(Stage.NEGOTIATE).begin_ns.tolist())) == [0, 500, 8000, 8500, 19000, 19500]


def test_a_torn_packed_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = write(tmp_path / "rank-00000.json.gz", [batch(float(at)) for at in range(1, 4000)], packed=True)
    whole.write_bytes(whole.read_bytes()[:-2000])
    trace = read(whole)
    assert trace.parts[0].truncated
    assert 1000 < len(trace.spans) < 4 * 4000
