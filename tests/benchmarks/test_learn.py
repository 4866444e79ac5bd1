"""`ringtune bench allreduce --learn`: the table made of times, and a real job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune.algorithms import Rule, load_table
from ringtune.benchmarks.comm.learn import rules_from


def test_borders_lie_between_the_sizes() -> None:
    medians = {1024: {"ring": 9.0, "tree": 2.0}, 4096: {"ring": 5.0, "tree": 4.0}, 16384: {"ring": 7.0, "tree": 9.0}}
    assert rules_from(medians, "network", 4) == [Rule("network", 4, 8192, "tree"), Rule("network", 4, 0, "ring")]


def test_noise_makes_no_rules() -> None:
    medians = {1: {"ring": 1.01, "tree": 1.0}, 2: {"ring": 1.0, "tree": 1.01}}
    assert rules_from(medians, "network", 2) == [Rule("network", 2, 0, "ring")]


def learn(folder: Path, transport: str) -> subprocess.CompletedProcess[str]:
    words = ["bench", "allreduce", "-np", "2", "--sizes", "64B,4KiB,64KiB", "--seconds", "0.02", "--learn", "t.json"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "RINGTUNE_TRANSPORT": transport}
    command = [sys.executable, "-m", "ringtune.cli", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.long
def test_learns_over_tcp(tmp_path: Path) -> None:
    done = learn(tmp_path, "tcp")
    assert done.returncode == 0, done.stdout + done.stderr
    rules = load_table(tmp_path / "t.json")
    assert all(row[:2] == (1, 2) for row in rules)
    assert rules[-1][2] == 0
    script = (
        "import torch, ringtune.torch as h; h.init(); print('sum', h.allreduce(torch.ones(9), op=h.Sum).sum().item())"
    )
    environ = {**os.environ, "RINGTUNE_TRANSPORT": "tcp", "RINGTUNE_ALGORITHM_TABLE": str(tmp_path / "t.json")}
    run = [sys.executable, "-m", "ringtune.cli", "run", "-np", "2", "--no-run-dir", sys.executable, "-c", script]
    used = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert used.stdout.count("sum 18.0") == 2, used.stdout + used.stderr


@pytest.mark.slow
def test_shared_memory_leaves_no_choice(tmp_path: Path) -> None:
    done = learn(tmp_path, "shm")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no choice of algorithm" in done.stderr
