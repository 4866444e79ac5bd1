"""Folders of benchmarks: gone at the end, or when the next benchmark begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ringtune.benchmarks.harness.scratch import PREFIX, kept_or_scratch, remove_left_behind, scratch_folder
from ringtune.errors import UsageError

HOLDER = """
import time
from ringtune.benchmarks.harness.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def old(path: Path) -> Path:
    path.mkdir()
    os.utime(path, (0, 0))
    return path


def test_a_folder_is_removed_at_the_end(tmp_path: Path) -> None:
    with scratch_folder() as folder:
        assert folder.parent == tmp_path and folder.name.startswith(PREFIX)
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_benchmark_left_goes_when_the_next_begins(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", HOLDER], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        try:
            assert remove_left_behind(tmp_path, young_s=-1) == []
        finally:
            process.send_signal(signal.SIGTERM)
    assert (left / "file").exists()
    assert remove_left_behind(tmp_path) == []  # too young to tell from one that is just being made
    os.utime(left, (0, 0))
    with scratch_folder() as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_what_belongs_to_nobody_else_goes_and_the_rest_stays(tmp_path: Path) -> None:
    gone = old(tmp_path / f"{PREFIX}old")
    kept = [old(tmp_path / "other"), tmp_path / f"{PREFIX}file", tmp_path / f"{PREFIX}link"]
    kept[1].write_text("x")
    kept[2].symlink_to(kept[0])
    assert remove_left_behind(tmp_path) == [gone]
    assert all(path.exists() for path in kept)


def test_a_folder_that_is_named_is_made_and_stays(tmp_path: Path) -> None:
    wanted = tmp_path / "not" / "yet"
    for _ in range(2):
        with kept_or_scratch(wanted) as folder:
            assert folder == wanted and folder.is_dir()
    assert wanted.is_dir()


def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    words = r"--folder .*file/inside: cannot be made"
    with pytest.raises(UsageError, match=words), kept_or_scratch(tmp_path / "file" / "inside"):
        pass


def test_without_a_name_the_folder_goes(tmp_path: Path) -> None:
    with kept_or_scratch(None) as folder:
        assert folder.parent == tmp_path and folder.is_dir()
    assert not folder.exists()
