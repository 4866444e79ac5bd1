"""Files of lines that another process is still writing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringtune.timeline.runs.growing_lines import GrowingLines


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_each_line_is_read_once_and_a_torn_one_when_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = GrowingLines(path)
    assert lines.read() == []
    append(path, "a\nb\nc")
    assert lines.read() == [b"a", b"b"]
    assert lines.read() == []
    append(path, "c\n\nd")
    assert lines.read() == [b"cc", b""]
    assert lines.restarts == 0 and not lines.only_the_end


def test_the_begin_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append(path, "old\n")
    lines = GrowingLines(path, path.stat().st_size)
    append(path, "new\n")
    assert lines.read() == [b"new"]


@pytest.mark.parametrize("replaced", [True, False])
def test_another_file_is_read_from_its_begin(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "log.jsonl"
    append(path, "first\nsecond\n")
    lines = GrowingLines(path)
    assert lines.read() == [b"first", b"second"]
    if replaced:
        append(tmp_path / "fresh", "a line that is longer than both of the others\n")
        os.replace(tmp_path / "fresh", path)
    else:
        path.write_text("shorter\n")
    expected = path.read_bytes().splitlines()
    assert lines.read() == expected and lines.restarts == 1
    assert lines.read() == []


def test_of_a_long_file_only_the_end_is_read_without_the_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append(path, "".join(f"line {number}\n" for number in range(10)))
    lines = GrowingLines(path, limit_bytes=17)
    assert lines.read() == [b"line 8", b"line 9"][-2:]
    assert lines.only_the_end
    append(path, "line 10\n")
    assert lines.read() == [b"line 10"]


def test_no_more_than_the_limit_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = GrowingLines(path, limit_bytes=16)
    append(path, "1234567\n")
    assert lines.read() == [b"1234567"]
    append(path, "abcdefg\n" * 4)
    assert [lines.read() for _ in range(3)] == [[b"abcdefg"] * 2, [b"abcdefg"] * 2, []]


def test_a_file_that_may_not_be_opened_is_refused_by_the_opener(tmp_path: Path) -> None:
    def refuse() -> int:
        raise PermissionError("outside of the run")

    append(tmp_path / "log.jsonl", "secret\n")
    with pytest.raises(PermissionError, match="outside"):
        GrowingLines(tmp_path / "log.jsonl", opener=refuse).read()
