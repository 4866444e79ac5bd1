"""What a rank leaves of its Python stack: while nothing moves, when it is told to end, and after an error."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.meters.sample import Sample
from ringtune.meters.stack_log import StackLog

NOW = Sample(**{field.name: 0 for field in fields(Sample) if field.name != "gpus"})

WAITING = """
import os, sys, time
from pathlib import Path
from ringtune.meters.stack_log import StackLog
log = StackLog(Path(sys.argv[1]), 0, 10**18, int)
def load_batch():
    if os.fork() == 0:
        os.kill(os.getpid(), 15)
    os.wait()
    print("there", flush=True)
    time.sleep(60)
load_batch()
"""


def test_where_a_rank_stands_is_there_while_nothing_moves(tmp_path: Path) -> None:
    moved, path = [0], layout.stack_file(tmp_path, 3)
    path.parent.mkdir()
    path.write_text("of a job that used the folder before")
    log = StackLog(tmp_path, 3, 0, lambda: list(moved))
    log.append(NOW)
    assert path.read_text() == ""
    log.append(NOW)
    first = path.read_text()
    assert "no operation finished for 0 s" in first.splitlines()[0]
    assert "in test_where_a_rank_stands_is_there_while_nothing_moves" in first
    log.append(NOW)
    assert path.read_text() == first  # once is enough
    moved[0] = 1
    log.append(NOW)
    assert path.read_text() == ""
    log.end()
    log.end()
    assert not path.exists()


def test_a_rank_that_is_told_to_end_leaves_its_stack_and_a_forked_child_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path)], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == "there\n"
        assert layout.stack_file(tmp_path, 0).read_text() == ""
        rank.terminate()
        assert rank.wait(30) == -signal.SIGTERM  # the signal still does what it does
    assert re.search(r'File "<string>", line \d+ in load_batch', layout.stack_file(tmp_path, 0).read_text())


def test_the_error_of_a_script_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = StackLog(tmp_path, 0, 10**18, int)
    monkeypatch.setattr(sys, "last_value", ValueError("bad sample 17"), raising=False)
    log.end()
    assert layout.stack_file(tmp_path, 0).read_text().rstrip().endswith("ValueError: bad sample 17")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / layout.STACKS_FOLDER).write_text("")
    with pytest.raises(RingtuneError, match=r"rank-00000\.txt: cannot be written"):
        StackLog(tmp_path, 0, 0, int)
