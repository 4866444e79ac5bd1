"""What the System page shows, from samples with known rates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ringtune import layout
from ringtune.dashboard.data import system
from ringtune.dashboard.data.system import LINE_LIMIT, POINT_LIMIT, SampleReader
from ringtune.dashboard.figures.system import UNITS, over_time
from tests.dashboard.folders import sampled


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rates_are_exact_and_machines_count_once(tmp_path: Path) -> None:
    sampled(tmp_path)
    found = SampleReader(tmp_path).read(["a", "a"])
    lines = {**system.process_lines(found), **system.machine_lines(found)}
    assert [line.values[1:].tolist() for line in lines["cpu"]] == [[0.5] * 19, [1.5] * 19]
    assert [line.values[-1] for line in lines["memory"]] == [1 << 30, 2 << 30]
    assert [(line.name, line.values[-1]) for line in lines["busy"]] == [("a", 50.0)]
    assert [(line.name, line.values[-1]) for line in lines["used"]] == [("a", 25.0)]
    assert [(line.name, line.values[-1]) for line in lines["network"]] == [
        ("a, in", 0), ("a, out", 3e6), ("a, loopback", 0),
    ]  # fmt: skip
    assert lines["gpu"] == [] and lines["cpu"][0].seconds.tolist() == list(range(20))
    assert [card[1] for card in system.numbers(found)] == ["19.0 s", "1.00", "3 GiB", "50.0 %"]
    assert len(system.machine_lines(SampleReader(tmp_path).read(["a", "b"]))["busy"]) == 2


def test_another_process_of_an_elastic_job_makes_a_gap_not_a_rate(tmp_path: Path) -> None:
    sampled(tmp_path, ranks=1, seconds=4)
    path = layout.sample_log(tmp_path, 0)
    changed = [{**row, "pid": 7 if n > 1 else 100} for n, row in enumerate(rows(path))]
    path.write_text("".join(json.dumps(row) + "\n" for row in changed))
    cpu = system.process_lines(SampleReader(tmp_path).read([]))["cpu"][0].values
    assert np.isnan(cpu).tolist() == [True, False, True, False]


def test_a_file_that_was_thinned_is_read_anew(tmp_path: Path) -> None:
    sampled(tmp_path, ranks=1, seconds=3 * POINT_LIMIT)
    reader, path = SampleReader(tmp_path), layout.sample_log(tmp_path, 0)
    first = reader.read([]).ranks[0]
    assert len(first.at_s) == POINT_LIMIT and np.nanmax(first.rate("cpu_ns")) == pytest.approx(0.5e9)
    kept = path.read_text().splitlines(keepends=True)[::2]
    other = path.with_suffix(".new")
    other.write_text("".join(kept[:100]))
    other.replace(path)
    assert len(reader.read([]).ranks[0].at_s) == 100


def test_gpus_are_lines_and_many_ranks_become_three(tmp_path: Path) -> None:
    sampled(tmp_path, ranks=LINE_LIMIT + 1, gpus=[{"index": 3, "use_percent": 80, "memory_used_bytes": 1}])
    found = SampleReader(tmp_path).read([])
    assert [(line.name, line.values[0]) for line in system.machine_lines(found)["gpu"]] == [("machine, GPU 3", 80.0)]
    cpu = system.process_lines(found)["cpu"]
    assert [line.name for line in cpu] == ["least of 17", "median of 17", "most of 17"]
    assert [line.values[-1] for line in cpu] == [0.5, 8.5, 16.5]


def test_what_makes_no_sense_is_no_value(tmp_path: Path) -> None:
    path = layout.sample_log(tmp_path, 0)
    path.parent.mkdir()
    broken = [{"at_ns": "x", "cpu_ns": 1e400, "gpus": 7}, {"at_ns": None, "gpus": [3, {"index": "a"}]}, {}]
    path.write_text("[]\n{\n" + "".join(json.dumps(row) + "\n" for row in broken))
    found = SampleReader(tmp_path).read(["<b>"])
    assert len(found.problems) >= 2 and len(found.ranks) == 1
    for name, lines in {**system.process_lines(found), **system.machine_lines(found)}.items():
        assert over_time(name, lines, "dark").layout.yaxis.title.text == UNITS[name][1]
    assert "&lt;b&gt;" in over_time("busy", system.machine_lines(found)["busy"]).data[0].name
    assert system.numbers(SampleReader(tmp_path / "none").read([])) == []
