"""`ringtune bench frameworks`: who takes part, the record made of times, and a real run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune.benchmarks.comm.framework_steps import STEPS, prepare, start_of
from ringtune.benchmarks.comm.frameworks import (
    FrameworksRequest,
    find_pythons,
    frameworks_record,
    frameworks_table,
    step_record,
    steps_table,
    too_slow,
)
from ringtune.benchmarks.harness.races import CaseResult, Outcome
from ringtune.errors import UsageError

REQUEST = FrameworksRequest(2, (1024,), "1x4KiB", 0.1, 1, {"jax": sys.executable}, {"mxnet": "it is not here"})


def test_what_is_named_is_taken_and_what_is_nowhere_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ringtune.benchmarks.comm import frameworks

    monkeypatch.setattr(frameworks, "_ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    kept = tmp_path / "mxnet" / "bin" / "python"
    kept.parent.mkdir(parents=True)
    kept.touch()
    (tmp_path / "mxnet" / "requirements").touch()
    pythons, absent = find_pythons(["tensorflow", "jax", "mxnet"], {"jax": "jaxenv/bin/python"})
    assert pythons == {"jax": "jaxenv/bin/python", "mxnet": str(kept)}
    assert (
        list(absent) == ["tensorflow", "mpi4jax"]
        and "make test-frameworks FRAMEWORKS=tensorflow" in absent["tensorflow"]
    )
    with pytest.raises(UsageError, match="unknown framework 'caffe'; known: tensorflow, jax, keras, mxnet"):
        find_pythons(["caffe"], {})


def outcome(ours_ns: float) -> Outcome:
    times = {"ringtune": [10_000.0] * 3, "ringtune.jax": [ours_ns] * 3, "jax-gloo": [60_000.0] * 3}
    return Outcome([CaseResult(times)])


def test_a_front_end_is_compared_with_its_own_way_and_with_ringtune_alone() -> None:
    record = frameworks_record(REQUEST, ["1 KiB"], outcome(20_000.0))
    [case] = record["cases"]
    assert case["frameworks"]["jax"]["own_ways"]["jax-gloo"]["median"] == 3
    assert case["frameworks"]["jax"]["more_than_alone_ns"]["median"] == 10_000
    assert record["absent"] == {"mxnet": "it is not here"} and frameworks_table(record).row_count == 3
    assert too_slow(record) == []


def test_what_is_too_slow_is_said() -> None:
    slow = too_slow(frameworks_record(REQUEST, ["1 KiB"], outcome(80_000.0)))
    assert slow == [
        "1 KiB: jax is 0.75 times as fast as jax-gloo",
        "1 KiB: jax takes 70.0 µs more, allowed are 16.0 µs",
    ]


def test_a_step_is_compared_with_processes_that_are_alone() -> None:
    step = step_record({"ringtune.jax": [20_000.0, 40_000.0] * 4, "alone": [18_000.0, 36_000.0] * 4})
    assert step["to_alone"]["median"] == pytest.approx(0.9) and step["times"]["alone"]["median"] == 27_000
    table = steps_table({"ranks": 2, "steps": {"jax": step}})
    assert table.row_count == 1 and list(table.columns[3].cells) == ["90.0% \\[90.0%, 90.0%]"]


@pytest.mark.parametrize("framework", ["tensorflow", "jax", "keras", "mxnet"])
def test_a_step_lowers_the_loss_of_a_rank_alone(framework: str) -> None:
    if framework in find_pythons([framework], {})[1] or find_pythons([framework], {})[0][framework] != sys.executable:
        pytest.skip(f"this Python has no {framework}; make test-frameworks makes one that has")
    prepare(framework, 1)
    step = STEPS[framework](start_of(0), False)
    first = float(step())
    for _ in range(20):
        last = float(step())
    assert last < first


@pytest.mark.slow
def test_a_real_run_names_what_is_absent(tmp_path: Path) -> None:
    """With ringtune alone; `tests/frameworks` runs it where a framework is."""
    few = ["--sizes", "1KiB", "--profile", "2x4KiB", "--seconds", "0.05", "--json", "out.json"]
    command = [sys.executable, "-m", "ringtune.cli", "bench", "frameworks", "--frameworks", "mxnet", *few]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    here = set(find_pythons(["mxnet"], {})[0])
    assert set(record["absent"]) == {"mxnet"} - here and ("absent: mxnet" in done.stdout) == (not here)
    assert [set(case["times"]) for case in record["cases"]] == [{"ringtune", *(f"ringtune.{one}" for one in here)}] * 2
    assert set(record["steps"]) == here
