"""Libraries of PyTorch's world on ringtune's backend, with no import of ringtune's in the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.engines import cases

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240


def needs(module: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed; `make test-engines` makes an environment", allow_module_level=True)


def start(
    script: str, folder: Path, *arguments: object, flags: Sequence[object] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a script of `scripts/` on two ranks in a folder."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
               "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    job = [sys.executable, "-m", "ringtune.cli", "run", "-np", "2", *map(str, flags), sys.executable]
    words = [str(ROOT / "tests/engines/scripts" / script), *map(str, (folder, *arguments))]
    return subprocess.run(
        [*job, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def losses(folder: Path) -> list[float]:
    """Return the losses that the ranks left; every one of them trained on ringtune's backend."""
    found = [(folder / f"loss-{rank}").read_text().split() for rank in (0, 1)]
    assert [backend for _, backend in found] == ["ringtune", "ringtune"]
    return [float(loss) for loss, _ in found]


def events_of(trace: Path) -> list[dict[str, Any]]:
    document = json.loads(trace.read_text())
    return document["traceEvents"] if isinstance(document, dict) else document


@pytest.mark.parametrize(
    ("library", "script"), [("accelerate", "train_accelerate.py"), ("transformers", "train_transformers.py")]
)
def test_on_the_cpu_with_the_group_made_before(library: str, script: str, tmp_path: Path, alone: float) -> None:
    needs(library)
    ended = start(script, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert losses(tmp_path) == pytest.approx([alone, alone], rel=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_deepspeed_with_its_groups_in_the_timeline(stage: int, tmp_path: Path, alone: float) -> None:
    needs("deepspeed")
    trace = tmp_path / "trace.json"
    flags = ["--run-dir", tmp_path / "run", "--timeline", trace]
    ended = start("train_deepspeed.py", tmp_path, stage, flags=flags)
    assert ended.returncode == 0, ended.stderr
    assert losses(tmp_path) == pytest.approx([alone, alone], rel=1e-3)  # it trains in single precision
    # Gradients and parameters of every step travel in the group that DeepSpeed has made.
    carried = Counter(
        event["pid"]
        for event in events_of(trace)
        if event.get("ph") == "X" and str(event.get("args", {}).get("tensor", "")).startswith("group ")
    )
    assert len(carried) == 2 and min(carried.values()) >= cases.STEPS
