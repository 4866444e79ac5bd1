"""`ringtune tune --restarts --apply` of a job whose bucket size costs time: what is confirmed, printed and written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune import layout

PLANTED = """
import json, os
rank, run = int(os.environ["RINGTUNE_RANK"]), os.environ["RINGTUNE_RUN_DIR"]
bucket = os.environ.get("RINGTUNE_BUCKET_CAP_MB", "1")
if rank == 0:
    made = {"RINGTUNE_BUCKET_CAP_MB": bucket}
    with open(os.path.join(run, "torch.json"), "w") as said:
        json.dump({"format": 1, "backend": "cpu:gloo,cuda:gloo", "made": made}, said)
folder = os.path.join(run, "steps")
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, f"rank-{rank:05}.jsonl"), "w") as log:
    for step in range(60):
        length = (8 if bucket == "50" else 12) * 10**6 + 10**4 * (step % 7)
        line = {"step": step, "begin_ns": 0, "end_ns": length, "bytes": 64, "collectives": 2}
        log.write(json.dumps(line) + chr(10))
"""
"""Two ranks that say how long their steps were, and what DDP was made with, as a job of torch's does."""


@pytest.mark.slow
def test_a_planted_gain_is_confirmed_and_kept_by_lines_of_environment_and_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLANTED)
    words = ["tune", "-np", "2", "--restarts", "--max-trials", "5", "--run-dir", "run", "--apply", "kept.env"]
    done = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", *words, sys.executable, "-S", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    gain = re.search(
        r"improved: RINGTUNE_BUCKET_CAP_MB=50; confirmed beside the command as it is: (\S+) % \((\S+) % to (\S+) %\) "
        "less time a step",
        said,
    )
    assert gain is not None, said
    middle, low, high = map(float, gain.groups())
    assert low <= middle <= high and middle == pytest.approx(33.3, abs=0.3)
    head, *kept = (tmp_path / "kept.env").read_text().splitlines()
    assert head == "# ringtune tune: improved: RINGTUNE_BUCKET_CAP_MB=50"
    assert kept == [
        "RINGTUNE_BUCKET_CAP_MB=50",
        "# or in the script: DistributedDataParallel(model, bucket_cap_mb=50)",
    ]
    assert "ringtune tune: environment written to kept.env" in done.stdout
    result = layout.tuning_journal(tmp_path / "run").read_text().splitlines()[-1]
    assert '"event":"result"' in result.replace(" ", "") and '"RINGTUNE_BUCKET_CAP_MB"' in result
