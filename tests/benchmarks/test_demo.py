from __future__ import annotations

from pathlib import Path

import pytest

from ringtune.benchmarks.demo import clear, dashboard_command, decision_text, scaling_lines
from ringtune.errors import UsageError

KNOBS = {"fusion_bytes": 3 << 20, "cycle_time_ns": 500_000}


def test_a_better_setting_is_told_with_its_interval() -> None:
    decision = {"decision": "improved", "knobs": KNOBS, "gain": {"median": 0.1, "low": 0.05, "high": 0.15}}
    text = "better than the default by 10.0% (95 % interval 5.0% to 15.0%): 3 MiB fusion buffer, 500 µs cycle time"
    assert decision_text(decision) == text


def test_keeping_the_default_says_why() -> None:
    decision = {"decision": "keep-default", "knobs": KNOBS, "gain": {}, "reason": "no setting was better"}
    assert decision_text(decision) == "keep-default: 3 MiB fusion buffer, 500 µs cycle time; no setting was better"


def test_scaling_of_everyone_at_the_largest_rank_count() -> None:
    row = {"ranks": 2, "rate": {"median": 40.0}, "efficiency": {"median": 0.9, "low": 0.8, "high": 1.0}}
    record = {"model": "net", "unit": "images/s", "records": [{}, row], "peers": {"ddp-gloo": {"records": [{}, row]}}}
    tail = "40.0 images/s on 2 ranks, efficiency 90.0% [80.0%, 100.0%]"
    assert scaling_lines(record) == [f"net, ringtune: {tail}", f"net, ddp-gloo: {tail}"]


def test_dashboard_command() -> None:
    assert dashboard_command(Path("runs/demo")) == "make dashboard"
    assert dashboard_command(Path("/tmp/my runs/demo")) == "ringtune dashboard '/tmp/my runs'"


def test_only_run_folders_are_removed(tmp_path: Path) -> None:
    clear(tmp_path / "missing")
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    clear(run)
    assert not run.exists()
    (tmp_path / "precious.txt").write_text("keep me")
    with pytest.raises(UsageError, match="is no run folder"):
        clear(tmp_path)
    assert (tmp_path / "precious.txt").exists()
