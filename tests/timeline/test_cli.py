from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ringtune import layout
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.cli import timeline
from ringtune.timeline.merging.merge import merge_run
from ringtune.timeline.reading.reader import read
from ringtune.timeline.synthetic.generate import Schedule
from ringtune.timeline.units import bytes_text, rate_text, share_text, time_text
from tests.conftest import needs
from tests.timeline.generated_run import generate_run
from tests.timeline.helpers import four_ranks
from tests.timeline.scenario import Scenario, simulate


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return generate_run(
        tmp_path, "train", four_ranks(late_rank=3, late_ns=2_000_000, dropped={1: 9}, knob_change_step=2)
    )


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(timeline, [str(argument) for argument in arguments], catch_exceptions=False)


def test_summary_prints_every_table(run: Path) -> None:
    result = invoke("summary", run)
    assert result.exit_code == 0
    for expected in (
        "job generated, 4 ranks, 320 spans",
        "4 steps: median 16.1 ms, p95 16.1 ms",
        "within ±1.50 µs",
        "! 9 spans (2.7 %) were dropped",
        "Time per phase",
        "Communication",
        "Fusion: 8 batches, 2.0 a step, 2.0 tensors and 10.1 KiB each",
        "Arrived last (16 tensors, 0 too close to tell)",
        "16 (100.0 %)",
        "Knobs",
        "64 MiB",
    ):
        assert expected in result.output


def test_summary_of_any_input_is_the_same(run: Path) -> None:
    parts = sorted(layout.timeline_parts(run).iterdir())
    from_parts = json.loads(invoke("summary", "--json", *parts).output)
    merge_run(run)
    for source in (run, layout.timeline_file(run)):
        document = json.loads(invoke("summary", source, "--json").output)
        assert {**document, "path": ""} == {**from_parts, "path": ""}
    assert from_parts["arrivals"]["ranks"][3]["tensors_last"] == 16


def test_steps_are_chosen(run: Path) -> None:
    document = json.loads(invoke("summary", run, "--json", "--steps", "1:3").output)
    assert (document["steps"]["first"], document["steps"]["last"]) == (1, 2)
    assert json.loads(invoke("summary", run, "--json", "--steps", "3:").output)["steps"]["count"] == 1
    with pytest.raises(RingtuneError, match="no spans in the steps 90:"):
        invoke("summary", run, "--steps", "90:")


@pytest.mark.parametrize("text", ["x", "5", "5:5", "7:2", "-1:3", "1:2:3"])
def test_nonsense_steps_are_usage_errors(run: Path, text: str) -> None:
    with pytest.raises(UsageError, match="--steps"):
        invoke("summary", run, f"--steps={text}")


def test_merge_of_a_run_and_of_parts(run: Path, tmp_path: Path) -> None:
    result = invoke("merge", run)
    assert f"{layout.timeline_file(run)}: 320 spans of 4 ranks" in result.output
    assert "9 spans were dropped" in result.stderr
    parts = sorted(layout.timeline_parts(run).iterdir(), reverse=True)
    invoke("merge", *parts, "-o", tmp_path / "out.json.gz")
    assert len(read(tmp_path / "out.json.gz").spans) == 320
    with pytest.raises(UsageError, match="-o OUT"):
        invoke("merge", *parts)


def test_a_folder_without_a_timeline_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RingtuneError, match="ringtune run --timeline"):
        invoke("summary", tmp_path)
    with pytest.raises(RingtuneError, match="no parts of a timeline"):
        invoke("merge", tmp_path)


def test_one_rank_alone_has_a_summary(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "alone", Schedule(ranks=1))
    output = invoke("summary", run).output
    assert "1 ranks" not in output
    assert "1 rank," in output
    assert "Arrived last" not in output


def test_units() -> None:
    assert [time_text(ns) for ns in (0, 999, 1_500, 12_345_678, 3.2e9, 250e9)] == [
        *("0 s", "999 ns", "1.50 µs", "12.3 ms", "3.20 s", "250 s"),
    ]
    assert [bytes_text(count) for count in (5, 2048, 3 << 19, 64 << 20)] == ["5 B", "2 KiB", "1.50 MiB", "64 MiB"]
    assert [rate_text(rate) for rate in (None, 10, 2e3, 9.81e9)] == ["-", "10 B/s", "2.00 kB/s", "9.81 GB/s"]
    assert (share_text(1, 8), share_text(1, 0)) == ("12.5 %", "-")


@pytest.fixture
def slow_run(tmp_path: Path) -> Path:
    """A run in which rank 3 computes 2 ms longer than the others, and a fast one to compare it with."""
    simulate(Scenario(steps=20))[0].write(layout.timeline_parts(tmp_path / "fast"))
    simulate(Scenario(steps=20, slow_compute={3: 2_000_000}))[0].write(layout.timeline_parts(tmp_path / "slow"))
    return tmp_path / "slow"


def test_analyses_print_tables(slow_run: Path) -> None:
    assert "was lost to rank 3 always (in 20 of 20 steps), by compute" in invoke("stragglers", slow_run).output
    path = invoke("critical-path", slow_run).output
    for expected in ("Critical path: 30", "late (others waited)", "By rank", "Longest steps", "layer4.weight +1"):
        assert expected in path
    factors = invoke("efficiency", slow_run, "--reference", slow_run.with_name("fast")).output
    for expected in ("load balance", "x serialisation", "x transfer", "= efficiency"):
        assert expected in factors
    changed = invoke("diff", slow_run.with_name("fast"), slow_run).output
    assert "compute rank 3" in changed
    assert changed.index("slower") < changed.index("same")


@pytest.mark.parametrize("command", ["stragglers", "critical-path", "efficiency"])
def test_analyses_print_json_and_take_steps(slow_run: Path, command: str) -> None:
    whole = json.loads(invoke(command, slow_run, "--json").output)
    some = json.loads(invoke(command, slow_run, "--json", "--steps", "5:10").output)
    assert whole.keys() == some.keys()
    steps = [found["steps"] if isinstance(found["steps"], int) else len(found["steps"]) for found in (whole, some)]
    assert steps == [20, 5]


def test_queries_and_export(slow_run: Path, tmp_path: Path) -> None:
    needs("duckdb")
    sql = "select stage, count(*) as spans from spans group by all order by 1"
    rows = json.loads(invoke("query", sql, slow_run, "--json").output)
    assert rows[0] == {"stage": "communicate", "spans": 4 * 20 * 3}
    assert "communicate" in invoke("query", sql, slow_run).output
    assert "spans" in invoke("export", slow_run, "--parquet", tmp_path / "spans.parquet").output
    assert (tmp_path / "spans.parquet").read_bytes()[:4] == b"PAR1"
    assert json.loads(invoke("query", f"select 1 /* {'long' * 2000} */ as one", slow_run, "--json").output) == [
        {"one": 1}
    ]
    with pytest.raises(UsageError, match="is a file: the SQL statement stands before it"):
        invoke("query", slow_run, sql)


def test_a_folder_beside_other_sources_is_refused(slow_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RingtuneError, match=r"a folder is read alone; `ringtune timeline diff`"):
        invoke("summary", tmp_path, slow_run)


def test_analyses_say_what_they_lack(run: Path, tmp_path: Path) -> None:
    part = layout.timeline_part(run, 0)
    with pytest.raises(RingtuneError, match="two ranks ran together"):
        invoke("stragglers", part)
    with pytest.raises(RingtuneError, match="needs at least two"):
        invoke("diff", run, run, "--steps", "1:2")
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    for command in ("critical-path", "efficiency", "stragglers"):
        with pytest.raises(RingtuneError):
            invoke(command, empty)
    with pytest.raises(RingtuneError, match="no file; merge the run first"):
        invoke("open", run, "--ui", "https://ui.example", "--port", "0")
    with pytest.raises(RingtuneError, match="not there"):
        invoke("open", tmp_path / "none.json")
