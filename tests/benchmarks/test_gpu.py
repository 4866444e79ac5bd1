"""`make bench-gpu`: the program itself on the CPU; what it measures there means nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune.benchmarks.comm import gpu


@pytest.mark.long
def test_both_jobs_leave_their_tables(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--sizes", "4KiB,1MiB", "--rounds", "2", "--model", "resnet18", "--batch", "2"]
    result = CliRunner().invoke(gpu.main, [*options, "--pixels", "32", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    records = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert [record["ranks"] for record in records] == [1, 2]
    assert [row["bytes"] for row in records[1]["reductions"]] == [4096, 1 << 20]
    table = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "## 2 ranks" in table and "| 4 KiB |" in table and "- DDP (gloo): " in table


def test_the_table_counts_bytes_and_images() -> None:
    seconds = {"ringtune": {"median": 0.5, "low": 0.4, "high": 0.6}}
    record = {
        "ranks": 2, "device": "a GPU", "torch": "2", "copies": {"to host": {"bytes": 10**9, **seconds["ringtune"]}},
        "reductions": [{"bytes": 1 << 20, "seconds": seconds}],
        "gradients": {"tensors": 3, "bytes": 1 << 20, "seconds": seconds},
        "training": {
            "model": "m", "batch": 8, "pixels": 32,
            "seconds": {"alone": {"median": 0.25}, **seconds},
        },
    }  # fmt: skip
    text = gpu.markdown([record])
    assert "Pinned memory to host: 2.00 GB/s." in text
    assert "| 1 MiB | 500 ms | 0.00 |" in text
    assert "- alone: 64 images/s, 100.0 % of alone" in text
    assert "- ringtune: 32 images/s, 50.0 % of alone" in text
