"""Parts, the files of records that ranks write: what stands in them comes back, cut, damaged or killed anywhere."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune import layout
from ringtune.errors import TraceIoError
from ringtune.timeline.inputs import load
from ringtune.timeline.merging.merge import merge_run
from ringtune.timeline.merging.part_writer import write_part
from ringtune.timeline.reading import part_reader
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.part_layout import ABOUT, BATCH, HEADER, RECORD, TENSORS, TEXT, WORDS
from ringtune.timeline.reading.part_reader import PartReader, read_part
from ringtune.timeline.spans import Instant, PartInfo, SpanTable, Trace
from ringtune.timeline.synthetic.generate import Schedule, generate
from ringtune.timeline.vocabulary import KINDS, MESSAGES, Stage
from tests.conftest import needs
from tests.timeline.generated_run import generate_run
from tests.timeline.helpers import rows

ROOT = Path(__file__).resolve().parents[2]

FACTS = (
    "",
    '"algorithm":"ring","dtype":"float32"',
    '"dtype":"bfloat16","wire":"float16","process_set":3,"step_schedule":1,"peer":7',
    '"peer":70000',
    '"device":0',
    '"algorithm":"of another tool","dtype":"float8"',
)


def table(draws: list[tuple[int, ...]], texts: list[str]) -> SpanTable:
    """Spans of any stage, name and facts."""
    names = (*(f"NEGOTIATE_{kind}" for kind in KINDS[:3]), "RING_ALLREDUCE", "QUEUE", "WAIT", "PACK", *texts)
    data = np.array(draws, dtype=np.int64).reshape(-1, 9)
    stage = data[:, 2] % (max(Stage) + 1)
    instants = (stage == int(Stage.CYCLE)) | (stage == int(Stage.COUNTER))
    end = np.where(instants, data[:, 0], data[:, 0] + data[:, 1])
    counted = stage == int(Stage.COUNTER)
    return SpanTable(
        begin_ns=data[:, 0],
        end_ns=end,
        rank=np.full(len(data), 5, dtype=np.int32),
        stage=stage.astype(np.uint8),
        name=(data[:, 3] % len(names)).astype(np.int32),
        tensor=np.where(counted | (stage == int(Stage.RANGE)), 0, data[:, 4] % (len(texts) + 1)).astype(np.int32),
        bytes=data[:, 5],
        batch=np.where(counted, 0, data[:, 6]),
        step=np.where(counted, -1, data[:, 7] - 1),
        knobs_version=np.where(counted, 0, data[:, 7] % 9).astype(np.int32),
        facts=np.where(counted, 0, data[:, 8] % len(FACTS)).astype(np.int32),
        names=names,
        tensors=("", *texts),
        fact_texts=FACTS,
    )


BATCHES = st.integers(MESSAGES.start, MESSAGES.start + 2**32 - 1)
SPANS = st.lists(
    st.tuples(
        st.integers(-(2**60), 2**60), st.integers(0, 2**40), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50),
        st.integers(0, 2**62), BATCHES, st.integers(0, 2**32 - 1), st.integers(0, 50),
    ),
    max_size=30,
)  # fmt: skip
TEXTS = st.lists(st.text(st.characters(exclude_categories=("Cs",))), min_size=1, max_size=6, unique=True)


@settings(max_examples=80, deadline=None)
@given(draws=SPANS, texts=TEXTS, packed=st.booleans())
def test_whatever_is_written_comes_back(
    draws: list[tuple[int, ...]], texts: list[str], packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spans = table(draws, [text for text in texts if text])
    part = tmp_path_factory.mktemp("part") / ("rank-00005.spans.gz" if packed else "rank-00005.spans")
    about = PartInfo(5, 8, "hôst", "jöb", dropped=3, unix_ns=7, monotonic_ns=-2, file=1)
    said = (Instant("STALL", "stall", 5, 17, {"tensor": texts[0], "missing": [1]}), Instant("", "", 5, -1, {}))
    write_part(part, about, spans, said)
    found = read_part(part)
    assert rows(found.spans) == rows(spans)
    assert found.instants == said and found.skipped == 0
    assert found.parts == (replace(about, recorded=len(spans), path=part),)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of 200 spans, texts and instants."""
    return generate(Schedule(ranks=2, steps=10)).write(tmp_path_factory.mktemp("whole"))[1]


@pytest.mark.parametrize("packed", [False, True])
def test_cut_anywhere_every_whole_record_is_there(whole: Path, packed: bool, tmp_path: Path) -> None:
    content, everything = whole.read_bytes(), read_part(whole)
    part = tmp_path / whole.name
    for cut in range(0, len(content), 307):
        part.write_bytes(content[:cut])
        try:
            found = read_part(part)
        except TraceIoError as error:
            assert str(part) in str(error) and "torn inside its header" in str(error)
            assert cut < HEADER.itemsize + 8 * RECORD.itemsize
            continue
        assert found.parts[0].truncated and found.skipped == 0
        records = np.frombuffer(content[:cut], RECORD, (cut - HEADER.itemsize) // RECORD.itemsize, HEADER.itemsize)
        assert len(found.spans) == int((records["stage"] < TEXT).sum())
        assert rows(found.spans) == rows(everything.spans.take(slice(len(found.spans))))


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_a_reader_goes_on_where_it_ended(
    whole: Path, tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_reader, "BLOCK_RECORDS", block)
    content, part = whole.read_bytes(), tmp_path / whole.name
    reader, found = PartReader(part, SpanBuilder()), list[SpanTable]()
    for cut in (0, 5, 96, 97, 400, 3000, 3001, len(content)):
        part.write_bytes(content[:cut])
        reader.read()
        found.append(reader.take())
        assert reader.torn == (cut < len(content))
    assert sum(map(len, found)) == len(read_part(whole).spans)
    about = reader.part()
    assert about is not None and about.recorded == sum(map(len, found))
    part.write_bytes(content[:300])
    with pytest.raises(TraceIoError, match="was replaced while it was followed"):
        reader.read()


def batches(lists: list[list[tuple[int, int]]], said: list[tuple[int, list[int]]]) -> bytes:
    """Lists of tensors (text and bytes), and batches of them: number of the list, words."""

    def head(stage: int, **fields: int) -> bytes:
        record = np.zeros(1, RECORD)
        record["stage"] = stage
        for name, value in fields.items():
            record[name] = value
        return record.tobytes()

    def words(inside: bytes) -> bytes:
        found = b""
        for at in range(0, len(inside), 36):
            record = np.zeros(1, RECORD)
            record["stage"] = WORDS
            found += inside[at : at + 36].ljust(36, b"\0") + record.tobytes()[36:]
        return found

    found = b""
    for number, tensors in enumerate(lists, 1):
        inside = b"".join(text.to_bytes(4, "little") + size.to_bytes(8, "little") for text, size in tensors)
        found += head(TENSORS, name=number, batch=len(tensors)) + words(inside)
    for number, numbers in said:
        inside = b"".join(one.to_bytes(4, "little") for one in numbers)
        found += head(BATCH, begin_ns=1000, end_ns=2000, bytes=number, batch=9, dtype=7, peer=-1) + words(inside)
    return found


def test_a_batch_is_a_negotiation_and_a_queue_a_tensor(tmp_path: Path) -> None:
    part = tmp_path / "rank-00000.spans"
    empty = table([], ["a", "b"])
    write_part(part, PartInfo(0, truncated=True), empty, [])
    whole = part.read_bytes()  # its texts: 1 host and job, 2 "a", 3 "b"
    lists = [[(2, 4), (3, 8)], [(3, 2**40)] * 20]
    long = [5, 0, *range(20)]
    part.write_bytes(whole + batches(lists, [(1, [600, 0, 0, 250]), (2, long), (1, [0, 1, 7, 3]), (3, [1, 2])]))
    found = read_part(part)
    assert found.skipped == 1, "a batch of a list that is not there"
    submits = found.spans.of_stage(Stage.NEGOTIATE)
    assert submits.tensor_texts()[:2] == ["a", "b"] and len(submits) == 24
    assert sorted(set(submits.begin_ns.tolist())) == sorted({1000, 1250, 1007, 1003, *(1000 + at for at in range(20))})
    queued = found.spans.of_stage(Stage.QUEUE)
    assert set(queued.duration_ns.tolist()) == {600, 5, 2**32} and set(queued.begin_ns.tolist()) == {2000}
    assert set(found.spans.bytes.tolist()) == {4, 8, 2**40}
    cut = whole + batches(lists, [(2, long)])
    for missing in (1, 48, 49, 96, 144, 145):
        part.write_bytes(cut[:-missing])
        assert not len(read_part(part).spans), "a torn batch"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_costs_what_it_touches_and_is_named(data: st.DataObject, whole: Path) -> None:
    check_damage(data, whole)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(max_examples=10_000, deadline=None)
@given(data=st.data())
def test_damage_is_survived_for_minutes(data: st.DataObject, whole: Path) -> None:
    check_damage(data, whole)


def check_damage(data: st.DataObject, whole: Path) -> None:
    """Whatever does not touch a damaged record comes back; else the error names file and offset."""
    content, part = bytearray(whole.read_bytes()), whole.with_name("damaged.spans")
    hurt = set[int]()
    for _ in range(data.draw(st.integers(1, 5))):
        place, inside = data.draw(st.integers(0, len(content) - 1)), data.draw(st.binary(min_size=1, max_size=60))
        inside = inside[: len(content) - place]
        content[place : place + len(inside)] = inside
        hurt |= {(at - HEADER.itemsize) // RECORD.itemsize for at in range(place, place + len(inside))}
    part.write_bytes(bytes(content))
    try:
        found = read_part(part)
    except TraceIoError as error:
        assert str(part) in str(error) and min(hurt) < 8
        assert re.search(r"offset \d+|torn inside its header", str(error)), error
        return
    records = np.frombuffer(whole.read_bytes(), RECORD, offset=HEADER.itemsize)
    left = [at for at in np.flatnonzero(records["stage"] < ABOUT).tolist() if at not in hurt]
    kept = set(zip(found.spans.begin_ns.tolist(), found.spans.end_ns.tolist(), strict=True))
    spans = [(int(records["begin_ns"][at]), int(records["end_ns"][at])) for at in left if records["stage"][at] < TEXT]
    assert kept >= set(spans)


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [(0, b"X", "at offset 0"), (8, b"\x09", "at offset 8 stands format 9"), (12, b"\x40", "at offset 12"),
     (35, b"\xff", "rank -")],
)  # fmt: skip
def test_an_impossible_header_is_refused(whole: Path, tmp_path: Path, offset: int, value: bytes, said: str) -> None:
    content, part = bytearray(whole.read_bytes()), tmp_path / whole.name
    content[offset : offset + len(value)] = value
    part.write_bytes(bytes(content))
    with pytest.raises(TraceIoError, match=said):
        read_part(part)


def test_a_run_folder_is_read_from_its_parts_where_all_are_there(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "parts", Schedule(ranks=2))
    merged = merge_run(run).output
    whole = rows(load(merged).spans)
    merged.write_text("{}")
    assert rows(load(run).spans) == whole and load(run).path == merged
    os.utime(merged, ns=(0, 0))
    with pytest.raises(TraceIoError, match="no trace"):
        load(run)  # a part is younger than the merged file
    merged.touch()
    layout.timeline_part(run, 1).unlink()
    with pytest.raises(TraceIoError, match="no trace"):
        load(run)  # the merged file has more ranks


def test_the_example_of_the_readme_reads_a_part(whole: Path) -> None:
    text = (ROOT / "timeline" / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- part: example -->\n```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    space: dict[str, Any] = {}
    exec(block[1], space)
    rank, times = space["step_times_ms"](whole)
    steps = read_part(whole).spans.of_stage(Stage.STEP)
    assert rank == 1 and times.tolist() == (steps.duration_ns / 1e6).tolist()


RECORDER = """
import os, sys
import ringtune
session = ringtune.init()
session.start_part(sys.argv[1], gzip=sys.argv[1].endswith("packed"))
print("ready", flush=True)
number = 0
while True:
    session.record_range(f"range {number % 700}", number, number + 1)
    number += 1
    if number % 64 == 0:
        os.sched_yield()
"""


def killed(folder: Path, least_bytes: int, *, packed: bool) -> Trace:
    """What is left of a recording that ended by SIGKILL when its file had so many bytes, or soon after."""
    part = folder / ("packed" if packed else "rank-00000.spans")
    command = [sys.executable, "-c", RECORDER, str(part)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        deadline, file = time.monotonic() + 120, part.with_name("packed.gz") if packed else part
        while file.stat().st_size < least_bytes and time.monotonic() < deadline:
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    file.rename(found := folder / f"rank-00000.spans{'.gz' * packed}")
    return read_part(found)


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
    ],
)
def test_after_sigkill_every_record_is_there_and_none_invented(moments: int, tmp_path: Path) -> None:
    needs("ringtune._native")
    draw, longest = random.Random(moments), 0
    for moment in range(moments):
        folder = tmp_path / str(moment)
        folder.mkdir()
        packed = moment % 4 == 3
        least = 300_000 if moment == 0 else draw.randrange(200_000)
        found = killed(folder, least // 8 if packed else least, packed=packed)
        spans, longest = found.spans, max(longest, len(found.spans))
        assert found.parts[0].truncated and found.skipped == 0
        # A full ring drops spans, so numbers may be missing, but each that is there is whole and in its place.
        assert np.all(np.diff(spans.begin_ns) > 0) and np.all(spans.duration_ns == 1)
        assert spans.name_texts() == [f"range {number % 700}" for number in spans.begin_ns.tolist()]
    assert longest > 1000
