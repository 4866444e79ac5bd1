"""Files that the user names: replaced in one piece, never at the cost of a link, a pipe or a device."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from ringtune import output_file as module
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.output_file import is_stdout, is_stream, output_file, write_output


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "new" / ("ü" * 120)  # 240 bytes: no room for a longer name beside it
    write_output(target, b"first")
    target.chmod(0o640)
    with pytest.raises(ValueError, match="halfway"), output_file(target) as part:
        part.write_bytes(b"half")
        raise ValueError("halfway")
    assert target.read_bytes() == b"first"
    write_output(target, b"second")
    assert target.read_bytes() == b"second"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("there", [True, False])
def test_symbolic_links_stay(tmp_path: Path, there: bool) -> None:
    real, middle, link = tmp_path / "real", tmp_path / "middle", tmp_path / "link"
    if there:
        real.write_bytes(b"old")
    middle.symlink_to("real")
    link.symlink_to(middle)
    write_output(link, b"new")
    assert link.is_symlink()
    assert middle.is_symlink()
    assert real.read_bytes() == b"new"


@pytest.mark.parametrize("through_link", [True, False])
def test_pipes_and_descriptors_are_written_through(tmp_path: Path, through_link: bool) -> None:
    read, write = os.pipe()
    target = Path(f"/dev/fd/{write}")
    if through_link:
        (tmp_path / "link").symlink_to(target)
        target = tmp_path / "link"
    write_output(target, b"through")
    os.close(write)
    assert os.read(read, 100) == b"through"
    os.close(read)
    assert target.is_symlink() == (through_link or target.is_symlink())


def test_an_open_file_is_appended_to_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with open(file, "wb", buffering=0) as opened:
        opened.write(b"before ")
        write_output(f"/dev/fd/{opened.fileno()}", b"content")
        opened.write(b" after")
    assert file.read_bytes() == b"before content after"


def test_a_named_pipe_finds_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    reader.start()
    write_output(fifo, b"x" * 200_000)
    reader.join()
    assert found == [b"x" * 200_000]
    monkeypatch.setattr(module, "_READER_S", 0.1)
    with pytest.raises(RingtuneError, match="nobody reads this pipe"):
        write_output(fifo, b"x")
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_reader_that_has_gone_is_a_broken_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError):
        write_output(f"/dev/fd/{write}", b"x")
    os.close(write)


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceIoError, match="name a file in it; choose another output"):
        write_output(tmp_path, b"x", TraceIoError)
    with pytest.raises(RingtuneError, match="/dev/full: cannot be written: No space left"):
        write_output("/dev/full", b"x")
    write_output("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert is_stream(Path("/dev/stdout"))
    assert not is_stream(tmp_path)
    assert not is_stdout(tmp_path / "no such")


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_output("~/t.json", b"x")
    assert (tmp_path / "t.json").read_bytes() == b"x"
