"""Files that lie, break or attack: an error that helps, or what is sound in them; never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.reading.reader import read
from ringtune.timeline.synthetic.generate import Schedule, generate
from tests.timeline.helpers import write_json

GOOD = {"name": "RING_ALLREDUCE", "cat": "communicate", "ph": "X", "pid": 0, "tid": 3, "ts": 1.5, "dur": 2.25}

ODD_EVENTS: list[Any] = [
    *(7, None, "text", [], {}, {"ph": 5}, {"ph": "X"}, {"ph": "M"}, {"ph": "?", "name": "x"}),
    *({**GOOD, "ts": bad} for bad in (None, "soon", 1e300)),
    *({**GOOD, "pid": bad} for bad in ("Spans", 2**40, [1])),
    {**GOOD, "dur": -5},
    {"ph": "e", "id": 1, "ts": 5},
    {"ph": "E", "pid": 1, "tid": 1, "ts": 1},
    {"ph": "b", "id": {"x": []}, "cat": "q", "ts": 1},
    {"ph": "b", "id": 4, "ts": 1},
    {"ph": "i", "name": "x"},
    {"ph": "i", "name": "x", "ts": 1, "pid": "p"},
]


def test_odd_events_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    events = [GOOD, *ODD_EVENTS, {**GOOD, "ts": "2.5"}, {**GOOD, "args": [1]}, {**GOOD, "args": {"bytes": "many"}}]
    trace = read(write_json(tmp_path / "odd.json", events))
    assert trace.spans.begin_ns.tolist() == [1500, 2500, 1500, 1500]
    assert trace.spans.duration_ns.tolist() == [2250] * 4
    assert trace.skipped == len(ODD_EVENTS)
    assert summarize(trace).skipped == len(ODD_EVENTS)


@pytest.mark.parametrize("content", [[1, 2, 3], [{}], {"traceEvents": ["a"]}, [{"ph": "?"}]])
def test_json_that_is_no_trace_is_refused(content: Any, tmp_path: Path) -> None:
    path = write_json(tmp_path / "odd.json", content)
    with pytest.raises(TraceIoError) as caught:
        read(path)
    assert f"{path}: no trace" in str(caught.value)
    assert "give a Chrome trace or a run folder" in str(caught.value)


def test_an_empty_array_is_an_empty_trace(tmp_path: Path) -> None:
    trace = read(write_json(tmp_path / "empty.json", []))
    assert (len(trace.spans), trace.ranks, summarize(trace).span_count) == (0, (), 0)


@pytest.mark.parametrize(
    ("about", "complaint"),
    [
        ({"format": 99, "rank": 0}, "format 99"),
        ({"format": 1, "rank": -1}, "rank -1"),
        ({"format": 1, "rank": "x"}, "rank 'x'"),
        ({"format": 1}, "rank None"),
    ],
)
def test_a_part_with_an_impossible_header_is_refused(about: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    path = write_json(tmp_path / "part.json", [{"name": "ringtune_part", "ph": "M", "pid": 0, "args": about}, GOOD])
    with pytest.raises(RingtuneError, match=complaint):
        read(path)


@pytest.mark.parametrize("about", [{"format": 2, "parts": []}, {"format": 1}, {"format": 1, "parts": [5]}])
def test_a_merged_file_that_contradicts_itself_is_refused(about: dict[str, Any], tmp_path: Path) -> None:
    path = write_json(tmp_path / "m.json", {"traceEvents": [GOOD], "otherData": {"ringtune": about}})
    with pytest.raises(RingtuneError, match=r"update ringtune|merge the run's parts again"):
        read(path)


def test_a_folder_and_a_binary_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceIoError, match="Is a directory"):
        read(tmp_path)
    (tmp_path / "a.out").write_bytes(bytes(range(256)) * 64)
    with pytest.raises(TraceIoError, match="no trace"):
        read(tmp_path / "a.out")


def test_a_number_of_ranks_that_no_job_has_costs_no_memory(tmp_path: Path) -> None:
    start = {"start_time_since_epoch_in_micros": 1_700_000_000_000_000}
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "args": start}]
    events += [{"name": name, "ph": "X", "pid": 1, "ts": ts, "dur": 0} for name, ts in (("0", 1), ("999999999", 5000))]
    path = write_json(tmp_path / "hvd.json", events)
    report = merge([path], tmp_path / "merged.json")
    assert "no part of rank 1-" in report.sentences()[0]
    for file in (path, tmp_path / "merged.json"):
        assert [rank.rank for rank in summarize(read(file)).arrivals.ranks if rank.tensors_last] == [999_999_999]
        assert [rank.rank for rank in stragglers(read(file)).ranks] == [0, 999_999_999]


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_damage_anywhere_never_gives_more_than_a_ringtune_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    parts = generate(Schedule(steps=1)).write(folder)
    content = bytearray(parts[1].read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=30))
    parts[1].write_bytes(bytes(content))
    try:
        merge(parts, folder / "out.json")
    except RingtuneError as error:
        assert str(folder) in str(error) or "comes twice" in str(error)
        return
    orjson.loads((folder / "out.json").read_bytes())
    summarize(read(folder / "out.json")).to_json()
