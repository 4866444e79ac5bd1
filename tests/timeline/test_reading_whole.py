"""Parts that are read into columns of all: the same as each read alone and then joined, whatever the files hold."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.errors import RingtuneError
from ringtune.timeline.inputs import load
from ringtune.timeline.merging.merge import join, join_and_empty, read_whole
from ringtune.timeline.merging.part_writer import write_part
from ringtune.timeline.reading.part_layout import RECORD
from ringtune.timeline.reading.part_reader import recorded_spans
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import Trace
from ringtune.timeline.synthetic.generate import Schedule, generate
from tests.timeline.helpers import rows

JOB = generate(Schedule(ranks=4, steps=6, hosts=("a", "b", "a", "b")))


@st.composite
def folders(draw: st.DrawFn) -> list[tuple[int, bool, int, float, int | None]]:
    """Of each part: its rank, whether it is packed, how many spans and what share of it is left, what its end says."""
    said = st.one_of(st.none(), st.integers(0, 2**63 - 1), st.integers(0, 200))
    part = st.tuples(st.booleans(), st.integers(0, 200), st.one_of(st.just(1.0), st.floats(0, 1)), said)
    return [(rank, *draw(part)) for rank in draw(st.permutations(range(4)))]


def write(folder: Path, parts: list[tuple[int, bool, int, float, int | None]]) -> list[Path]:
    """Write these parts; one that is packed or cut keeps its own end."""
    found = []
    for path, (rank, packed, spans, share, said) in zip(JOB.write(folder / "whole"), sorted(parts), strict=True):
        trace = read(path)
        part = folder / (path.name + ".gz" if packed else path.name)
        # Texts in another order have other codes than on other ranks.
        write_part(part, trace.parts[0], trace.spans.take(np.arange(len(trace.spans))[::-1][:spans]), trace.instants)
        content = part.read_bytes()
        if said is not None and not packed:
            content = content[: -RECORD.itemsize] + said.to_bytes(8, "little") + content[8 - RECORD.itemsize :]
        part.write_bytes(content[: int(share * len(content))])
        found.append((rank, part))
    order = [rank for rank, *_ in parts]
    return [part for _, part in sorted(found, key=lambda one: order.index(one[0]))]


def one_by_one(parts: list[Path]) -> Trace | None:
    """Each part read alone, and those that can be read joined; None where none can."""
    traces = []
    for part in parts:
        try:
            traces.append(read(part))
        except RingtuneError:
            continue
    return join(traces) if traces else None


@settings(max_examples=150, deadline=None)
@given(parts=folders())
def test_together_as_alone(
    parts: list[tuple[int, bool, int, float, int | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = write(tmp_path_factory.mktemp("parts"), parts)
    expected = one_by_one(files)
    if expected is None:
        with pytest.raises(RingtuneError, match="torn inside its header"):
            load(files)
        return
    found = load(files)
    assert rows(found.spans) == rows(expected.spans)
    assert replace(found, spans=expected.spans) == expected


def test_whole_parts_are_not_copied(tmp_path: Path) -> None:
    files = JOB.write(tmp_path)
    traces, problems, room = read_whole(files, threads=2)
    assert not problems and len(room["rank"]) == sum(map(len, JOB.spans.values()))
    expected = join(list(map(read, files)))
    joined = join_and_empty(traces, room=room)
    assert all(getattr(joined.spans, name) is column for name, column in room.items())
    assert rows(joined.spans) == rows(expected.spans)
    os.truncate(files[2], files[2].stat().st_size - 1)
    assert not len(read_whole(files)[2]["rank"]), "memory for all of them beside the parts to copy"


def test_what_was_read_alone_is_never_changed(tmp_path: Path) -> None:
    traces = list(map(read, JOB.write(tmp_path)))
    before = [rows(trace.spans) for trace in traces]
    joined = join(traces)
    assert joined.origin_ns and [rows(trace.spans) for trace in traces] == before


@pytest.mark.parametrize("count", [0, -1, 2**62, 18 * 10**6])
def test_an_end_that_cannot_be_true_says_nothing(count: int, tmp_path: Path) -> None:
    part = JOB.write(tmp_path)[0]
    assert recorded_spans(part) == len(JOB.spans[0])
    with open(part, "r+b") as file:
        file.seek(-RECORD.itemsize, os.SEEK_END)
        file.write(count.to_bytes(8, "little", signed=True))
    assert recorded_spans(part) == 0
