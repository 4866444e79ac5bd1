"""A real, short run of `ringtune bench frameworks` with the one framework of this environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ringtune.benchmarks.comm.frameworks import FRAMEWORKS

HANG_S = 300.0  # a bound on hangs


def check_bench(name: str, folder: Path) -> None:
    """Run it; every contender gives exact sums and a time in each case."""
    few = ["--frameworks", name, "--sizes", "1KiB", "--profile", "2x4KiB", "--seconds", "0.05"]
    done = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", "bench", "frameworks", *few, "--json", "out.json"],
        cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    expected = {"ringtune", f"ringtune.{name}", *FRAMEWORKS[name]} - set(record["absent"])
    assert record["failed"] == {} and set(record["about"]) == expected, done.stdout
    assert set(record["steps"]) == {name} and set(record["steps"][name]["times"]) == {f"ringtune.{name}", "alone"}
    assert record["steps"][name]["to_alone"]["median"] > 0 and "to alone" in done.stdout
    for case in record["cases"]:
        assert set(case["times"]) == expected and set(case["frameworks"]) == {name}
