"""Libraries of PyTorch's world on ringtune's backend, with no import of ringtune's in the script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
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
    cases.seen_in_the_dashboard(tmp_path / "run")


KILLED = {
    "accelerate": ("train_accelerate.py", [7], 1e-6),
    "deepspeed": ("train_deepspeed.py", [1, 7], 1e-3),
    "lightning": ("train_lightning.py", ["ringtune", "--dies", 7], 1e-6),
}


@pytest.mark.parametrize("library", list(KILLED))
def test_a_killed_rank_is_named_and_the_job_goes_on_from_its_checkpoint(
    library: str, tmp_path: Path, alone: float, noticed: Callable[[Path], None]
) -> None:
    needs(library)
    script, arguments, within = KILLED[library]
    ended = start(script, tmp_path, *arguments, flags=["--restarts", 1])
    assert ended.returncode == 0, ended.stderr
    assert "PeerLost" in ended.stderr and "rank 1" in (tmp_path / "error-0").read_text()
    noticed(tmp_path)
    assert (tmp_path / "starts").read_text().splitlines() == ["0 2", "5 2"]
    assert losses(tmp_path) == pytest.approx([alone, alone], rel=within)


# Rank 1 has made another model than rank 0.
MODEL = "torch.nn.Linear(64, 8 + dist.get_rank())"
WRONG = {
    "accelerate": f"""
import accelerate, torch, torch.distributed as dist
dist.init_process_group("ringtune")
accelerate.Accelerator(cpu=True).prepare({MODEL})
""",
    "deepspeed": f"""
import deepspeed, torch, torch.distributed as dist
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="ringtune")
net = {MODEL}
deepspeed.initialize(model=net, model_parameters=net.parameters(), config={{"train_micro_batch_size_per_gpu": 4}})
""",
}
ANSWERS = {
    "accelerate": r"rank 1 on host \S+ ended its script with RuntimeError: .*params\[0\] .* with sizes \[9, 64\]",
    "deepspeed": r"the ranks wait for different tensors, so none can go on",
}


@pytest.mark.parametrize("library", list(WRONG))
def test_ranks_with_different_models_are_told_apart(library: str, tmp_path: Path) -> None:
    needs(library)
    (tmp_path / "wrong.py").write_text(WRONG[library], encoding="utf-8")
    ended = start(str(tmp_path / "wrong.py"), tmp_path, flags=["--stall-check-shutdown-time-seconds", 30])
    assert ended.returncode != 0
    assert re.search(ANSWERS[library], ended.stderr), ended.stderr
