"""Parts that grow, read block by block with native code, are what they are read event by event."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ringtune.timeline.reading import native_blocks
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.following import PartFollower
from ringtune.timeline.reading.native_blocks import BlockReader
from tests.conftest import needs
from tests.timeline.helpers import rows
from tests.timeline.test_native_lines import HEADER, LIST, OWN

pytestmark = pytest.mark.usefixtures("_native")
SECOND_LIST = LIST.replace('"id":1', '"id":2').replace('"a"', '"c"')


@pytest.fixture(scope="module", name="_native")
def native_code() -> None:
    """The tests here need the native code."""
    needs("ringtune._native")


def lines(*more: str) -> list[str]:
    """A header, a list of tensors, and all shapes of lines that the recorder writes."""
    return [HEADER, LIST, *OWN.values(), *more]


def followed(path: Path, cuts: list[int], text: bytes) -> tuple[PartFollower, list[tuple[object, ...]]]:
    """Follow a file that is written up to one cut after another; the follower, and the spans it gave."""
    follower = PartFollower(path, SpanBuilder(), lambda file: os.open(file, os.O_RDONLY))
    found: list[tuple[object, ...]] = []
    for cut in cuts:
        path.write_bytes(text[:cut])
        table = follower.follow()
        found += rows(table) if table is not None else []
    return follower, found


def patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on there is no native code."""
    monkeypatch.setattr(native_blocks, "new_reader", lambda: None)


def text_of(own: list[str]) -> bytes:
    return ("[\n" + ",\n".join(own) + "\n]\n").encode()


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_blocks_hold_what_events_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    text = text_of(lines(SECOND_LIST, *(OWN["batch"].replace('"tensors":1', '"tensors":2'),) * 20, *OWN.values()))
    cuts = [len(text) * (piece + 1) // pieces for piece in range(pieces)]
    follower, found = followed(tmp_path / "part.json", cuts, text)
    part = follower.part()
    patiently(monkeypatch)
    other, expected = followed(tmp_path / "other.json", [len(text)], text)
    assert sorted(found, key=repr) == sorted(expected, key=repr) and len(found) > 100
    assert part is not None and other.part() is not None and follower.instants == other.instants


def test_spans_of_the_usual_shape_do_not_pass_through_python() -> None:
    spans = SpanBuilder()
    reader = BlockReader(spans)
    assert reader.read(",\n".join(lines()).encode()) is not None
    counters = [OWN["in flight"], OWN["speed"]]
    assert reader.read((",\n" + ",\n".join([*OWN.values(), *counters])).encode()) == []
    names = {row for row in spans.take().name_texts()}
    assert "RING_ALLREDUCE" in names and not {"IN_FLIGHT", "BUS_BANDWIDTH"} & names


def test_what_cannot_be_read_natively_leaves_no_spans_and_the_next_block_is_read_again() -> None:
    spans = SpanBuilder()
    reader = BlockReader(spans)
    assert reader.read(",\n".join([HEADER, LIST, OWN["batch"]]).encode()) is not None
    before = len(spans.take())
    assert before == 6  # three tensors, negotiated and queued
    torn = f"{OWN['span']},\n{OWN['batch'][:60]}"
    assert reader.read(torn.encode()) is None
    assert reader.read(f"{OWN['span']},\n{LIST}".encode()) is None  # a list that comes twice
    assert len(spans.take()) == 0
    assert reader.read(OWN["batch"].encode()) == []  # the list is still known
    assert len(spans.take()) == before


def test_after_many_failures_it_is_not_tried_any_more() -> None:
    reader = BlockReader(SpanBuilder())
    for _ in range(native_blocks.MOST_FAILURES):
        assert reader.read(b"{") is None
    assert reader.read(OWN["span"].encode()) is None


def test_a_reader_that_keeps_much_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_blocks, "MOST_OTHER_BYTES", 100)
    spans = SpanBuilder()
    reader = BlockReader(spans)
    for _ in range(3):
        instant = '{"name":"x","ph":"i","s":"t","pid":3,"tid":0,"ts":1.000}'
        assert reader.read(f"{instant},\n{instant}".encode()) is not None
    reader.learn(
        [{"name": "ringtune_tensors", "ph": "M", "pid": 3, "tid": 0, "args": {"id": 1, "names": [], "bytes": []}}]
    )
    assert reader.read(OWN["span"].encode()) == []
    assert spans.take().tensor_texts() == ["a +2"]


def test_a_list_that_was_left_out_is_known_to_what_follows() -> None:
    spans = SpanBuilder()
    reader = BlockReader(spans)
    reader.learn([json.loads(LIST)])
    assert reader.read(OWN["copies"].encode()) == []
    assert spans.take().tensor_texts() == ["a", 'b "q"', "ü"]
