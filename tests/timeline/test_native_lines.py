"""The native reader gives what the patient one gives, or leaves the file to it: never anything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.errors import TraceIoError
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.reading import native_lines
from ringtune.timeline.reading.interpretation import read_events
from ringtune.timeline.reading.native_read import read_natively
from ringtune.timeline.spans import Trace
from ringtune.timeline.synthetic.generate import Schedule, generate
from tests.conftest import needs
from tests.timeline.helpers import rows

pytestmark = pytest.mark.usefixtures("_native")


@pytest.fixture(scope="module", name="_native")
def native_code() -> None:
    """The tests here need the native code."""
    needs("ringtune._native")


# ruff: noqa: E501 - lines as they stand in files
HEADER = '{"name":"ringtune_part","ph":"M","pid":3,"tid":0,"args":{"format":1,"rank":3,"size":4,"host":"h","job":"j"}}'
LIST = (
    '{"name":"ringtune_tensors","ph":"M","pid":3,"tid":0,"args":{"id":1,"names":["a","b \\"q\\"","ü"],"bytes":[4,8,0]}}'
)
END = '{"name":"ringtune_end","ph":"M","pid":3,"tid":0,"args":{"recorded":1,"dropped":0}}'

PLACE = '"pid":3,"tid":0,"ts":12345678901.234'
OWN = {
    "span": '{"name":"RING_ALLREDUCE","cat":"communicate","ph":"X",' + PLACE + ',"dur":20.001,"args":{"tensor":"a +2",'
    '"bytes":12,"algorithm":"ring","dtype":"float32","wire":"float16","process_set":2,"step_schedule":1,"peer":0,"batch":7,'
    '"step":3,"knobs_version":1}}',
    "wait": '{"name":"WAIT","cat":"wait","ph":"X",' + PLACE + ',"dur":0.000,"args":{"bytes":0,"step":3,"knobs_version":1}}',
    "range": '{"name":"größe \\u0001 \\"x\\"","cat":"range","ph":"X",' + PLACE + ',"dur":1.5,"args":{"step":3,"knobs_version":1}}',
    "cycle": '{"name":"CYCLE_START","cat":"cycle","ph":"i","s":"p",' + PLACE + ',"args":{"step":3,"knobs_version":1}}',
    "in flight": '{"name":"IN_FLIGHT","cat":"counter","ph":"C",' + PLACE + ',"args":{"bytes":77,"operations":5}}',
    "speed": '{"name":"BUS_BANDWIDTH","cat":"counter","ph":"C",' + PLACE + ',"args":{"bytes_per_s":10000000000}}',
    "batch": '{"name":"NEGOTIATE_ALLREDUCE","cat":"negotiate","ph":"X",' + PLACE + ',"dur":9.000,"args":{"tensors":1,'
    '"submitted":[0,1500,-2000],"queued_ns":250,"dtype":"float32","batch":7,"step":3,"knobs_version":1}}',
    "failed batch": '{"name":"NEGOTIATE_ALLREDUCE","cat":"negotiate","ph":"X",' + PLACE + ',"dur":1.000,"args":'
    '{"tensors":1,"submitted":[0,1500,2000],"step":3,"knobs_version":1}}',
    "copies": '{"name":"MEMCPY_IN_FUSION_BUFFER","cat":"copy_in","ph":"X",' + PLACE + ',"dur":0.006,"args":{"tensors":1,'
    '"copied":[1,2,3],"dtype":"float32","batch":7,"step":3,"knobs_version":1}}',
}  # fmt: skip
"""As the recorder writes them."""


def part(folder: Path, lines: list[str], tail: str = "\n]\n") -> Path:
    path = folder / "rank-00003.json"
    path.write_bytes(("[\n" + ",\n".join([HEADER, LIST, *lines, END]) + tail).encode("utf-8", "surrogatepass"))
    return path


def check(path: Path, *, read: bool | None = None) -> Trace | None:
    """Compare both readers; ``read``: whether the native one must have read the file, or must not."""
    found = read_natively(path)
    if read is not None:
        assert (found is not None) is read
    if found is not None:
        expected = read_events(path)
        assert rows(found.spans) == rows(expected.spans)
        assert (found.instants, found.source) == (expected.instants, expected.source)
        assert (expected.skipped, found.parts) == (0, expected.parts)
    return found


@pytest.mark.parametrize("kind", OWN)
def test_every_line_of_the_recorder_is_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_lines, "interpret_lines", _few_lines)
    found = check(part(tmp_path, [OWN[kind]] * 3), read=True)
    assert found is not None and len(found.spans) == {"batch": 18, "failed batch": 9, "copies": 9}.get(kind, 3)


def _few_lines(path: Path, lines: list[bytes]) -> Any:
    from ringtune.timeline.reading.interpretation import interpret_lines

    assert [line.strip(b",").decode() for line in lines] == ["[", HEADER, LIST, END, "]"], "left to the slow reader"
    return interpret_lines(path, lines)


FIELDS = st.sampled_from(
    [
        *('"name":', '"cat":', '"ph":', '"pid":', '"ts":', '"dur":', '"args":', '"tensor":', '"bytes":', '"step":'),
        *(
            '"X"',
            '"C"',
            '"b"',
            '"wait"',
            '"counter"',
            "1",
            "0",
            "-",
            ".",
            "e5",
            '"',
            "\\",
            "{",
            "}",
            "[",
            "]",
            ",",
            " ",
        ),
        *("null", "true", '"\\ud800"', "\\u00e9", "é", "\x01", "\n", "1e3", "-7", "99999999999999999999", "007"),
    ]
)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_mutated_lines_are_read_alike_or_not_at_all(data: st.DataObject, tmp_path_factory: Any) -> None:
    """A text of the recorder with anything put over, into or out of it."""
    lines = data.draw(st.lists(st.sampled_from(list(OWN.values())), min_size=1, max_size=3))
    which = data.draw(st.integers(0, len(lines) - 1))
    line, cut = lines[which], data.draw(st.integers(0, len(lines[which])))
    lines[which] = line[:cut] + data.draw(FIELDS) + line[cut + data.draw(st.integers(0, 12)) :]
    check(part(tmp_path_factory.mktemp("part"), lines))


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(0, 10**6),
    st.floats(-1e13, 1e13),
    st.integers(0, 10**15).map(lambda ns: ns / 1000),
    st.sampled_from([None, True, "5", 1e30, 0.1234]),
)
TEXTS = st.text(max_size=6) | st.sampled_from(
    ["wait", "range", "cycle", "counter", "other", "kernel", "copy_in", "é\\"]
)


@st.composite
def events(draw: Callable[[Any], Any]) -> dict[str, Any]:
    """An event of any tool: keys in any order, some missing, values of any type."""
    args = draw(st.fixed_dictionaries({}, optional={
        **dict.fromkeys(("bytes", "batch", "step", "knobs_version", "step_schedule", "peer", "process_set", "operations"), NUMBERS),
        **dict.fromkeys(("tensor", "dtype", "wire", "algorithm", "more"), TEXTS),
    }))  # fmt: skip
    event = {
        "name": draw(TEXTS),
        "cat": draw(TEXTS),
        "ph": draw(st.sampled_from("XXXXCibenMsB")),
        "pid": draw(st.sampled_from([0, 3, -1, 2**40, "p"])),
        "ts": draw(NUMBERS),
        "dur": draw(NUMBERS),
        "args": args,
        "tid": 7,
    }
    kept = draw(st.permutations(list(event)))[: draw(st.integers(6, len(event)))]
    return {key: event[key] for key in kept}


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(found=st.lists(events(), max_size=4), compact=st.booleans(), plain=st.booleans())
def test_events_of_other_tools_are_read_alike_or_not_at_all(
    found: list[dict[str, Any]], compact: bool, plain: bool, tmp_path_factory: Any
) -> None:
    separators = (",", ":") if compact else (", ", ": ")
    lines = [json.dumps(event, separators=separators, ensure_ascii=plain) for event in found]
    check(part(tmp_path_factory.mktemp("part"), [*lines, OWN["wait"]]))


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 400), piece=st.integers(1, 300))
def test_a_torn_end_is_no_less_torn_in_pieces(cut: int, piece: int, tmp_path_factory: Any) -> None:
    path = part(tmp_path_factory.mktemp("part"), [OWN["span"], OWN["batch"], OWN["wait"]])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_lines, "PIECE_BYTES", piece)
        found = check(path)
    if cut > 2:  # beyond the closing bracket
        assert found is None or found.parts[0].truncated


def test_a_line_of_another_shape_is_read_beside_the_others(tmp_path: Path) -> None:
    other = json.dumps(json.loads(OWN["span"]))  # with blanks
    found = check(part(tmp_path, [OWN["wait"], other, OWN["batch"]]), read=True)
    assert found is not None and len(found.spans) == 8
    merge([tmp_path / "rank-00003.json"], tmp_path / "native.json", engine="native")
    merge([tmp_path / "rank-00003.json"], tmp_path / "memory.json", engine="memory")
    merged = [rows(read_events(tmp_path / f"{engine}.json").spans) for engine in ("native", "memory")]
    assert merged[0] == merged[1] and len(merged[0]) == 8


def test_a_killed_recorders_file_ends_in_blanks(tmp_path: Path) -> None:
    path = part(tmp_path, [OWN["span"]])
    path.write_bytes(path.read_bytes().replace(b",\n" + END.encode(), b"") + b" " * 512)
    found = check(path, read=True)
    assert found is not None and found.parts[0].truncated


def test_a_list_that_comes_twice_is_left_to_the_patient_reader(tmp_path: Path) -> None:
    assert check(part(tmp_path, [OWN["batch"], LIST, OWN["batch"]]), read=False) is None


def test_times_are_exact_after_months(tmp_path: Path) -> None:
    line = OWN["wait"].replace("12345678901.234", "8639999999999.999")  # a hundred days
    found = check(part(tmp_path, [line]), read=True)
    assert found is not None and found.spans.begin_ns.tolist() == [8639999999999999]


def test_a_full_disk_is_said_in_words_and_leaves_nothing(tmp_path: Path) -> None:
    parts = generate(Schedule(ranks=2)).write(tmp_path / "parts")
    program = (
        "import resource, signal, sys\n"
        "from ringtune.timeline.merging.merge import merge\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))\n"
        "try:\n"
        "    merge(sys.argv[3:], sys.argv[2], engine='native')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    for limit in (100, 20_000):  # the records do not fit; the output does not
        command = [sys.executable, "-c", program, str(limit), str(tmp_path / "out.json"), *map(str, parts)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        assert said.startswith(f"TraceIoError {tmp_path / 'out.json'}: cannot be written: File too large")
        assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_records_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    with open(tmp_path / "records", "w+b") as records, open(tmp_path / "out", "w+b") as target:
        texts = [native_lines.Texts(("n",), ("",), ("",))]
        runs = [(0, 10, 0, 0, 0, 0)]
        writer = native_lines.merge_writer((records.fileno(), target.fileno(), 0), runs, texts)
        with pytest.raises(OSError, match=os.strerror(5)):
            writer.write_some(2)


def test_a_missing_file_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(TraceIoError, match=r"none\.json: cannot be read \(No such file or directory\)"):
        read_natively(tmp_path / "none.json")


def test_a_record_has_the_native_layout() -> None:
    assert native_lines.RECORD.itemsize == 64
    table = generate(Schedule(ranks=1)).spans[0]
    records = native_lines.records_of(table, native_lines.Texts(("x",), ("", "y"), ("",)))
    native_lines.sort(records)
    assert np.all(np.diff(records["begin_ns"]) >= 0)
    assert sorted((records["stage_and_row"] >> 8).tolist()) == list(range(len(table)))
    assert sorted(native_lines.stages_of(records).tolist()) == sorted(table.stage.tolist())
    assert int(records["tensor"].min()) == 2


def test_nothing_here_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ringtune._native", None)
    assert not native_lines.available()
