"""Lightning: its own door, the strategy ``ringtune``, and the callbacks that every Trainer gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines import cases
from tests.engines.test_torch_doors import events_of, losses, needs, start

pytestmark = pytest.mark.slow
needs("lightning")


@pytest.mark.parametrize("strategy", ["backend", "ringtune"])
def test_training_reaches_the_loss_of_one_process(strategy: str, tmp_path: Path, alone: float) -> None:
    trace, run = tmp_path / "trace.json", tmp_path / "run"
    ended = start("train_lightning.py", tmp_path, strategy, flags=["--run-dir", run, "--timeline", trace])
    assert ended.returncode == 0, ended.stderr
    assert losses(tmp_path) == pytest.approx([alone, alone], rel=1e-6)
    # Without a line in the script: epochs in the timeline, the model's name in the run's record, steps counted.
    names = [str(event.get("name")) for event in events_of(trace)]
    assert names.count("epoch 0") == names.count("epoch 19") == 2
    labels = json.loads((run / "run.json").read_text())["labels"]
    assert labels["model"] == "Digits"
    steps = [line for line in next((run / "steps").glob("rank-*0.*")).read_text().splitlines() if line.strip()]
    assert len(steps) >= 20
    cases.seen_in_the_dashboard(run)


def test_another_number_of_devices_than_ranks(tmp_path: Path) -> None:
    ended = start("train_lightning.py", tmp_path, "ringtune", "--devices", 1)
    assert ended.returncode != 0
    assert "2 ranks were started, but the Trainer has num_nodes=1 x devices=1" in ended.stderr
