"""The file that the user named is there while the job runs, as Horovod's is: rank 0's part, replaced by the merge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune import live_timeline
from ringtune.timeline.reading.reader import read
from ringtune.timeline.runs.run import Run
from tests.launch.conftest import DRIVER

SCRIPT = """
import json, os, sys, time
import numpy, ringtune.numpy as hvd

named, dynamic = sys.argv[1:]
hvd.init()

def reduced(name):
    hvd.allreduce(numpy.ones(3), name=name)

def waited(path, word):
    begin = time.monotonic()
    while True:
        text = open(path).read()
        if word in text:
            json.loads(text)
            return time.monotonic() - begin
        assert time.monotonic() - begin < 20, word
        time.sleep(0.002)

def looked(path):
    text = open(path).read()
    events = json.loads(text)
    assert "start_time_since_epoch_in_micros" in text
    names = {(event["name"], event.get("args", {}).get("tensor")) for event in events}
    assert ("NEGOTIATE_ALLREDUCE", "allreduce.test") in names and "CYCLE_START" in text, names
    start = next(found for event in events if (found := event["args"].get("start_time_since_epoch_in_micros")))
    now = time.time() * 1e6
    assert all(now - 60e6 < start + event["ts"] <= now for event in events if "ts" in event)

if hvd.rank() == 0:
    json.loads(open(named).read())  # there from init() on
reduced("test")
times = []
for step in range(9):
    reduced(f"step{step}")
    if hvd.rank() == 0:
        times.append(waited(named, f"allreduce.step{step}"))
if hvd.rank() == 0:
    looked(named)
    print("waited", sorted(times)[4], flush=True)
hvd.stop_timeline()
reduced("between")
hvd.start_timeline(dynamic, mark_cycles=True)
reduced("test")
if hvd.rank() == 0:
    waited(dynamic, "allreduce.test")
hvd.stop_timeline()
if hvd.rank() == 0:
    looked(dynamic)
    assert "between" not in open(named).read() + open(dynamic).read()
hvd.start_timeline(named)
reduced("last")
if sys.argv[2].endswith("killed.json"):
    if hvd.rank() == 0:
        waited(named, "allreduce.last")
        os.kill(os.getpid(), 9)
    time.sleep(60)
"""


def run(folder: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    more = {"HOROVOD_TIMELINE": targets[0], "HOROVOD_TIMELINE_MARK_CYCLES": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        str(DRIVER),
        "run",
        "-np",
        "2",
        "--run-dir",
        "run",
        sys.executable,
        str(script),
        *targets,
    ]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_reader_finds_events_a_tenth_of_a_second_later(tmp_path: Path) -> None:
    (tmp_path / "named.json").write_text("of an earlier job", encoding="utf-8")
    done = run(tmp_path, "named.json", str(tmp_path / "new" / "dynamic.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.split()
    assert words[:2] == ["[0]", "waited"] and float(words[2]) < 0.1
    merged = read(tmp_path / "named.json")
    assert merged.source != "part" and sorted(part.rank for part in merged.parts) == [0, 1]
    json.loads((tmp_path / "new" / "dynamic.json").read_text(encoding="utf-8"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["named.json", "new", "run", "script.py"]


@pytest.mark.slow
def test_a_rank_0_that_is_killed_leaves_no_part_in_the_place_of_the_merge(tmp_path: Path) -> None:
    done = run(tmp_path, "named.json", "killed.json")
    assert done.returncode == 137, done.stderr
    assert sorted(part.rank for part in read(tmp_path / "named.json").parts) == [0, 1]


def parts_of(run: Path) -> Path:
    parts = run / "timeline"
    parts.mkdir(parents=True)
    for number in ("", ".2", ".10"):
        (parts / f"rank-00000{number}.json").write_text(f'["{number}"]\n', encoding="utf-8")
    return parts


def test_the_newest_part_gets_a_second_name_which_is_no_merged_timeline(tmp_path: Path) -> None:
    parts, target = parts_of(tmp_path / "run"), tmp_path / "folder" / "t.json"
    assert live_timeline.show(parts, "rank-00000", target) is None
    assert target.samefile(parts / "rank-00000.10.json")
    (tmp_path / "run" / "run.json").write_text(json.dumps({"labels": {"timeline": str(target)}}), encoding="utf-8")
    assert Run(tmp_path / "run").timeline is None
    target.unlink()
    target.write_text("merged", encoding="utf-8")
    assert Run(tmp_path / "run").timeline == target


def test_on_another_file_system_it_is_a_link_until_the_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, target, link = parts_of(tmp_path / "run"), tmp_path / "t.json", os.link

    def within_a_file_system(one: Path, other: Path) -> None:
        if other.parent != parts:
            raise OSError(18, "Invalid cross-device link")
        link(one, other)

    monkeypatch.setattr(os, "link", within_a_file_system)
    (tmp_path / "users.json").symlink_to(target)
    shown = live_timeline.show(parts, "rank-00000", tmp_path / "users.json")
    assert shown == target and target.is_symlink() and target.samefile(parts / "rank-00000.10.json")
    assert os.readlink(target) != str(parts / "rank-00000.10.json"), "a writer through the link would replace the part"
    assert (tmp_path / "users.json").is_symlink()
    live_timeline.hide(shown)
    assert not os.path.lexists(target) and len(list(parts.iterdir())) == 3


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "packed", "usual", "no parts", "no room"])
def test_what_is_no_regular_file_is_left_alone(kind: str, tmp_path: Path) -> None:
    parts, target = parts_of(tmp_path / "run"), tmp_path / "target"
    if kind == "folder":
        target.mkdir()
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "device":
        target.symlink_to("/dev/null")
    elif kind == "packed":
        target = tmp_path / "t.json.gz"
    elif kind == "usual":
        target = tmp_path / "run" / "timeline.json"
    elif kind == "no parts":
        parts = tmp_path
    else:
        target = parts / "rank-00000.json" / "below a file"
    before = target.lstat().st_ino if os.path.lexists(target) else None
    assert live_timeline.show(parts, "rank-00000", target) is None
    assert (target.lstat().st_ino if os.path.lexists(target) else None) == before
    assert not list(tmp_path.glob(".*"))
