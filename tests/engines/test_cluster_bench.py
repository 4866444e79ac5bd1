"""A real, short run of `ringtune bench engines`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("engine", "module", "ways"),
    [
        ("spark", "pyspark", {"ringtune.spark.run", "TorchDistributor"}),
        ("ray", "ray", {"RayExecutor", "TorchTrainer"}),
    ],
)
def test_every_way_has_its_times(engine: str, module: str, ways: set[str], tmp_path: Path) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed; `make test-engines` makes an environment")
    few = ["--engines", engine, "--rounds", "1", "--steps", "2", "--width", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", "bench", "engines", *few, "--json", "out.json"],
        cwd=tmp_path, env={**os.environ, "RAY_worker_niceness": "0"}, capture_output=True, text=True, timeout=800,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert set(record["engines"]) == {engine} and set(record["engines"][engine]) == ways
    assert all(
        one["start_s"]["median"] > 0 and one["step_ns"]["median"] > 0 for one in record["engines"][engine].values()
    )
