"""The file that the user named is there while the job runs, as Horovod's is: rank 0's part, replaced by the merge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune import layout, live_timeline
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

def text_of(path):
    # As it was at one moment: what is read page by page may hold parts of two, and is read again then.
    text, again = None, open(path).read()
    while text != again:
        text, again = again, open(path).read()
    return text

def waited(path, word):
    begin = time.monotonic()
    while True:
        text = text_of(path)
        if word in text:
            json.loads(text)
            return time.monotonic() - begin
        assert time.monotonic() - begin < 20, word
        time.sleep(0.002)

def looked(path):
    text = text_of(path)
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


def shown_of(run: Path) -> Path:
    shown = layout.shown_file(run)
    shown.parent.mkdir(parents=True)
    shown.write_text("[]\n", encoding="utf-8")
    return shown


def test_what_is_shown_gets_a_second_name_which_is_no_merged_timeline(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shown, target = shown_of(run), tmp_path / "folder" / "t.json"
    assert live_timeline.target(run, target) == target
    assert live_timeline.show(run, target) is None
    assert target.samefile(shown)
    (run / "run.json").write_text(json.dumps({"labels": {"timeline": str(target)}}), encoding="utf-8")
    assert Run(run).timeline is None
    target.unlink()
    target.write_text("merged", encoding="utf-8")
    assert Run(run).timeline == target


def test_what_an_earlier_recording_has_shown_stays(tmp_path: Path) -> None:
    shown, target = shown_of(tmp_path / "run"), tmp_path / "first.json"
    live_timeline.show(tmp_path / "run", target)
    fresh = live_timeline.fresh(tmp_path / "run")
    assert fresh == shown and not fresh.exists()
    fresh.write_text("[1]\n", encoding="utf-8")
    assert target.read_text(encoding="utf-8") == "[]\n"


def test_on_another_file_system_it_is_a_link_until_the_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, target = shown_of(tmp_path / "run"), tmp_path / "t.json"

    def refused(one: Path, other: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    (tmp_path / "users.json").symlink_to(target)
    found = live_timeline.target(tmp_path / "run", tmp_path / "users.json")
    assert found == target
    link = live_timeline.show(tmp_path / "run", target)
    assert link == target and target.is_symlink() and target.samefile(shown)
    assert (tmp_path / "users.json").is_symlink()
    live_timeline.hide(link)
    assert not os.path.lexists(target) and shown.is_file()


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "packed", "usual", "no room"])
def test_what_is_no_regular_file_is_left_alone(kind: str, tmp_path: Path) -> None:
    shown, named = shown_of(tmp_path / "run"), tmp_path / "target"
    if kind == "folder":
        named.mkdir()
    elif kind == "pipe":
        os.mkfifo(named)
    elif kind == "device":
        named.symlink_to("/dev/null")
    elif kind == "packed":
        named = tmp_path / "t.json.gz"
    elif kind == "usual":
        named = tmp_path / "run" / "timeline.json"
    else:
        named = shown / "below a file"
    before = named.lstat().st_ino if os.path.lexists(named) else None
    target = live_timeline.target(tmp_path / "run", named)
    assert (target is None) == (kind != "no room")
    assert target is None or live_timeline.show(tmp_path / "run", target) is None
    assert (named.lstat().st_ino if os.path.lexists(named) else None) == before
    assert not list(tmp_path.glob(".*"))
