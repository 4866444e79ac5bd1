"""`ringtune bench hook`: the record made of times, and a real job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune.benchmarks.comm.config import HookRun
from ringtune.benchmarks.comm.hook import HookRequest, costlier, hook_record

REQUEST = HookRequest(2, HookRun(gradients=10, size_bytes=64, passes=3))


def test_a_cost_is_the_difference_of_a_pair_per_gradient() -> None:
    record = hook_record(REQUEST, {1: ([100.0, 200.0, 300.0], [110.0, 250.0, 330.0]), 0: ([50.0] * 3, [20_050.0] * 3)})
    first, second = record["by_rank"]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert second["cost"]["samples"] == [1.0, 5.0, 3.0]
    assert second["cost"]["median"] == 3.0
    assert first["cost"]["median"] == 2000.0
    assert first["empty"]["median"] == 5.0
    assert costlier(record, 2.0) == []
    assert costlier(record, 1.5) == ["rank 0: 2.00 µs per gradient, required 1.5"]


@pytest.mark.slow
def test_a_job_of_two_ranks(tmp_path: Path) -> None:
    words = ["bench", "hook", "--gradients", "8", "--passes", "5", "--json", "hook.json", "--require", "-1e9"]
    # What a hook costs is a difference of times: on a machine that is busy it may come out below nothing.
    command = [sys.executable, "-m", "ringtune.cli", *words]
    done = subprocess.run(
        command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "slower than required" in done.stderr
    record = json.loads((tmp_path / "hook.json").read_text(encoding="utf-8"))
    assert [row["rank"] for row in record["by_rank"]] == [0, 1]
    assert all(len(row["cost"]["samples"]) == 5 for row in record["by_rank"])
