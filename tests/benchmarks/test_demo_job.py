from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune.benchmarks import demo
from ringtune.errors import RingtuneError


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_leaves_trace_journal_record_and_report(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "demo"
    command = [sys.executable, "-m", "ringtune.benchmarks.demo", "--out", str(out)]
    # The tuner's memory of earlier jobs stays out of the user's own.
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    left = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {"run.json", "timeline.json", "tuning/journal.jsonl", "scaling/resnet-resnet50.json", "report.html"} <= left
    lines = done.stdout.splitlines()
    assert len(lines) == 6, "a line a part, and where to look"
    assert lines[0].startswith("[1/5] training on 2 ranks (")
    assert "accuracy" in lines[0]
    assert lines[-1].startswith(f"all output: {out}.log; ")
    assert "epoch 8: loss" in out.with_name("demo.log").read_text()


def test_the_demo_removes_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep me")
    command = [sys.executable, "-m", "ringtune.benchmarks.demo", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1
    assert "is no run folder" in done.stderr


def test_a_part_that_fails_shows_the_end_of_what_it_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "EXAMPLES", tmp_path / "nowhere")
    show = demo.Demo(tmp_path / "demo")
    with pytest.raises(RingtuneError, match="'ringtune run' failed with exit code") as caught:
        show.train()
    assert str(show.log) in str(caught.value)
    assert "nowhere" in str(caught.value)
