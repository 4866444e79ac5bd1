"""The benchmark of merging and analysing: right answers are measured, wrong ones end it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from click.testing import CliRunner

from ringtune.benchmarks.viewer.merge import CASES, chosen_cases, merge_command, parse_count
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.merging.parts import part_files
from ringtune.timeline.reading.part_layout import HEADER, RECORD
from ringtune.timeline.vocabulary import Stage
from tests.conftest import needs


def run(*arguments: str) -> str:
    found = CliRunner().invoke(merge_command, arguments, catch_exceptions=False)
    return found.output


def test_counts_are_read() -> None:
    assert [parse_count(text) for text in ("10M", "1.5k", "2000")] == [10_000_000, 1500, 2000]
    for text in ("", "ten", "-1", "0", "1G"):
        with pytest.raises(UsageError, match="expected a number of events"):
            parse_count(text)


def test_cases_are_chosen_in_their_order() -> None:
    assert chosen_cases("") == CASES
    assert [case.name for case in chosen_cases("merge, summary")] == ["merge", "summary"]
    with pytest.raises(UsageError, match="known are merge"):
        chosen_cases("marge")


@pytest.mark.slow
def test_every_analysis_is_measured_and_right(tmp_path: Path) -> None:
    needs("duckdb")
    run("--events", "2k", "--ranks", "2", "--json", str(tmp_path / "record.json"))
    record = orjson.loads((tmp_path / "record.json").read_bytes())
    assert [case["name"] for case in record["cases"]] == [case.name for case in CASES]
    # 252 spans a step and rank, steps by eights: 2,000 need one repetition.
    assert {case["name"]: case["events"] for case in record["cases"]}["merge"] == 8 * 2 * 252
    assert all(case["seconds"] > 0 and case["peak_bytes"] > 10 << 20 for case in record["cases"])


def test_a_wrong_answer_ends_it(tmp_path: Path) -> None:
    run("--events", "2k", "--ranks", "2", "--only", "merge", "--folder", str(tmp_path))
    for part in part_files(tmp_path / "parts"):
        records = np.memmap(part, RECORD, "r+", HEADER.itemsize)
        records["end_ns"][records["stage"] == int(Stage.COMMUNICATE)] -= 1
    with pytest.raises(RingtuneError, match="its answer is wrong"):
        run("--events", "2k", "--ranks", "2", "--only", "summary", "--folder", str(tmp_path))
