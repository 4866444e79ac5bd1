"""`ringtune bench negotiation`: growth is judged rightly, and a small run of the real thing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringtune.benchmarks.comm.negotiation import missed_growth, negotiation_table, parse_scale, require_growth
from ringtune.errors import RingtuneError, UsageError


def record(*cases: tuple[int, float, float]) -> dict[str, Any]:
    """Return a record of (ranks, messages, nanoseconds), the same for all phases but the silent one."""

    def phase(messages: float, ns: float) -> dict[str, Any]:
        load: dict[str, float] = {"messages": messages, "bytes": 10 * messages, "ns": ns}
        return {"coordinator": load, "busiest": load, "mean": load, "all_messages": messages, "all_bytes": messages}

    found = [
        {"ranks": ranks, "phases": {"cold": phase(m, ns), "cached": phase(m, ns), "steady": phase(0, ns)}}
        for ranks, m, ns in cases
    ]
    return {"fan_out": 8, "tensors": 5, "cases": found}


def test_counts_may_grow_as_the_logarithm_and_times_a_little_faster() -> None:
    assert missed_growth(record((64, 4, 100), (4096, 8, 240))) == []
    missed = missed_growth(record((64, 4, 100), (4096, 9, 260)))
    assert "cold, coordinator: messages grow 2.25x from 64 to 4096 ranks, allowed 2.00x" in missed
    assert "cached, busiest: ns grow 2.60x from 64 to 4096 ranks, allowed 2.50x" in missed
    assert not any("steady" in line for line in missed), "within a step schedule a rank's work depends on no other rank"


def test_jobs_without_a_full_tree_are_not_judged() -> None:
    require_growth(record((2, 1, 1), (8, 7, 9), (63, 18, 20), (64, 2, 20), (128, 2, 20)))
    with pytest.raises(UsageError, match="64 ranks or more"):
        require_growth(record((2, 1, 1), (32, 16, 20), (64, 16, 20)))


def test_messages_are_bounded_in_every_job() -> None:
    with pytest.raises(RingtuneError, match="cached, 4 ranks: 19 messages of one rank, allowed 18"):
        require_growth(record((4, 19, 1), (64, 16, 20), (128, 16, 20)))


def test_a_message_within_a_step_schedule_is_reported() -> None:
    given = record((64, 4, 100), (128, 4, 100))
    given["cases"][1]["phases"]["steady"]["busiest"] = {"messages": 1, "bytes": 0, "ns": 100}
    assert missed_growth(given)[0] == "steady, 128 ranks: 1 messages of one rank, allowed 0"


def test_scales() -> None:
    assert parse_scale("2,..,16,5") == [2, 4, 5, 8, 16]
    for wrong in ("", "1", "..,4", "4,..", "2,x", "5000"):
        with pytest.raises(UsageError):
            parse_scale(wrong)


def test_tables_have_a_row_per_job() -> None:
    assert negotiation_table(record((16, 4, 100), (32, 4, 100)), "cold").row_count == 2


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ringtune.cli", "bench", "negotiation", *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False)


def test_counts_of_the_real_thing_do_not_grow_with_the_ranks(tmp_path: Path) -> None:
    done = bench(tmp_path, "-np", "2,16,64,256", "--tensors", "3", "--cycles", "3", "--json", "n.json")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((tmp_path / "n.json").read_text())["cases"]
    by_ranks = {case["ranks"]: case["phases"] for case in cases}
    for phase in ("cold", "cached"):
        assert by_ranks[2][phase]["coordinator"]["messages"] == 2
        for ranks in (16, 64, 256):
            # Rank 0 gets a message of its eight children once and answers each; every link carries a message each way.
            assert by_ranks[ranks][phase]["coordinator"]["messages"] == 16
            assert by_ranks[ranks][phase]["all_messages"] == 2 * (ranks - 1)
            assert by_ranks[ranks][phase]["busiest"]["messages"] <= 18
    assert by_ranks[64]["cached"]["coordinator"]["bytes"] == by_ranks[256]["cached"]["coordinator"]["bytes"]
    assert all(phases["steady"]["all_messages"] == 0 for phases in by_ranks.values())


def test_too_few_jobs_to_judge_are_a_usage_error(tmp_path: Path) -> None:
    done = bench(tmp_path, "-np", "8,64", "--tensors", "1", "--cycles", "1", "--require-growth", "log")
    assert done.returncode == 2 and "-np has too few" in done.stderr, done.stderr
