"""Blocks of events from files of every layout, whole and torn."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.errors import TraceIoError
from ringtune.timeline.reading import stream as stream_module
from ringtune.timeline.reading.stream import EventStream

# Names that look like the seams between events, and objects inside arguments.
EVENTS = [
    {"name": 'a},{"name"\n' + str(number), "ph": "X", "ts": number, "args": {"list": [{"name": 1}, {}]}}
    for number in range(50)
]

LAYOUTS = {
    "compact array": lambda events: orjson.dumps(events),
    "line each": lambda events: b"[\n" + b",\n".join(map(orjson.dumps, events)) + b"\n]\n",
    "indented": lambda events: json.dumps(events, indent=3).encode(),
    "object": lambda events: orjson.dumps({"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"x": 1}}),
    "object, events last": lambda events: orjson.dumps({"otherData": {"x": 1}, "traceEvents": events}),
    "indented object": lambda events: json.dumps({"traceEvents": events, "otherData": {"x": 1}}, indent=1).encode(),
    "byte order mark": lambda events: b"\xef\xbb\xbf  \n" + orjson.dumps(events),
    "gzip": lambda events: gzip.compress(orjson.dumps(events)),
    "gzip in two members": lambda events: _two_members(orjson.dumps(events)),
}


def _two_members(data: bytes) -> bytes:
    return gzip.compress(data[:100]) + gzip.compress(data[100:])


def read_all(path: Path) -> tuple[list[Any], EventStream]:
    stream = EventStream(path)
    return [event for block in stream.blocks() for event in block], stream


@pytest.mark.parametrize("chunk", [7, 64, 1000, 4 << 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_events(
    layout: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "CHUNK_BYTES", chunk)
    path = tmp_path / "trace"
    path.write_bytes(LAYOUTS[layout](EVENTS))
    events, stream = read_all(path)
    assert events == EVENTS
    assert not stream.truncated
    if "object" in layout:
        assert stream.document["otherData"] == {"x": 1}


@pytest.mark.parametrize("layout", ["compact array", "line each", "indented", "object"])
def test_a_torn_file_keeps_what_is_whole(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "CHUNK_BYTES", 512)
    whole = LAYOUTS[layout](EVENTS)
    path = tmp_path / "trace"
    before = -1
    for cut in range(len(whole) // 3, len(whole) - 20, 97):
        path.write_bytes(whole[:cut])
        events, stream = read_all(path)
        assert stream.truncated
        assert events == EVENTS[: len(events)]
        assert len(events) >= before
        before = len(events)
    assert before > 40


def test_a_torn_gzip_file_keeps_what_is_whole(tmp_path: Path) -> None:
    events = [{"name": str(number * 7919 % 1000), "ph": "X"} for number in range(20_000)]
    packed = gzip.compress(orjson.dumps(events))
    path = tmp_path / "trace.gz"
    path.write_bytes(packed[: len(packed) // 2])
    found, stream = read_all(path)
    assert stream.truncated
    assert 1000 < len(found) < 20_000
    assert found == events[: len(found)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"   \n", "is empty"),
        (b"hello", "starts with b'hello'"),
        (b"\x7fELF\x02\x01", "no trace"),
        (b'{"a": 1}', 'without a list "traceEvents"'),
        (b'{"traceEvents": 5}', 'without a list "traceEvents"'),
        (b'"text"', "no trace"),
        (gzip.compress(b"hello", mtime=0), "no trace"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(TraceIoError) as caught:
        read_all(path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceIoError, match="No such file"):
        read_all(tmp_path / "none.json")


def test_deep_nesting_does_not_break_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "deep"
    path.write_bytes(b'[{"ph":"X"},' + b"[" * 100_000)
    events, stream = read_all(path)
    assert events == [{"ph": "X"}]
    assert stream.truncated


def test_an_endless_event_counts_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "CHUNK_BYTES", 256)
    monkeypatch.setattr(stream_module, "LONGEST_EVENT_BYTES", 2048)
    path = tmp_path / "long"
    path.write_bytes(b'[{"ph":"X"},\n{"name":"' + b"x" * 100_000 + b'"}]')
    events, stream = read_all(path)
    assert events == [{"ph": "X"}]
    assert stream.truncated


def test_broken_utf8_control_characters_and_nan_are_repaired(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(b'[{"name":"\xff"},\n{"name":"a\tb"},\n{"ts":NaN},\n{"name":"\\ud800"},\n{"name":"ok"}\n]')
    events, stream = read_all(path)
    assert events == [{"name": "\ufffd"}, {"name": "a\tb"}, {"ts": None}, {"name": "ok"}]
    assert (stream.skipped, stream.truncated) == (1, False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    events=st.lists(st.dictionaries(st.text(max_size=6), json_values, max_size=4), max_size=8),
    chunk=st.integers(1, 80),
)
def test_any_json_comes_back(events: list[Any], chunk: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("stream") / "trace"
    kept = stream_module.CHUNK_BYTES
    stream_module.CHUNK_BYTES = chunk
    try:
        for layout in ("compact array", "line each", "indented", "object"):
            path.write_bytes(LAYOUTS[layout](events))
            found, stream = read_all(path)
            assert found == events
            assert not stream.truncated
    finally:
        stream_module.CHUNK_BYTES = kept
