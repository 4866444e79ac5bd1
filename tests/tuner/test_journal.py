from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from ringtune.errors import RingtuneError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.advice import Workload
from ringtune.tuner.fingerprint import JobDescription, current
from ringtune.tuner.journal import CSV_HEADER, Journal, parse_line
from ringtune.tuner.records import NoteRecord, Record, ResultRecord, StartRecord, TrialRecord, knobs_fields, parse
from ringtune.tuner.scoring import NO_GAIN, Interval

FAST = Knobs(4 << 20, 500_000)
HALF = Interval(0.5, 0.4, 0.6)
RECORDS: list[Record] = [
    StartRecord(DEFAULTS, "ab12", 2, ("fusion_bytes", "cycle_time_ns"), 16, 10, 3),
    TrialRecord(0, "default", "complete", DEFAULTS, 0, 10, Interval(2e6, 1.5e6, 3e6), NO_GAIN, 8_000_000, 0),
    TrialRecord(1, "sampler", "stopped-early", FAST, 4, 3, Interval(1e6, 1e6, 2e6), HALF, 8_000_000, -7),
    NoteRecord("the advisor is gone"),
    ResultRecord("improved", FAST, 9, HALF, -90, "confirmed", 2),
]  # fmt: skip


def test_lines_are_as_the_run_folder_says(tmp_path: Path) -> None:
    path = tmp_path / "tuning" / "journal.jsonl"
    before = time.time_ns()
    with Journal(path) as journal:
        journal.write(RECORDS)
    start, default, trial, note, result = map(orjson.loads, path.read_bytes().splitlines())
    assert all(before <= line.pop("at_unix_ns") <= time.time_ns() for line in (start, default, trial, note, result))
    assert start == {
        "event": "start", "default": knobs_fields(DEFAULTS), "fingerprint": "ab12", "world": 2,
        "searched": ["fusion_bytes", "cycle_time_ns"], "max_trials": 16, "steps_per_trial": 10, "stored_trials": 3,
    }  # fmt: skip
    assert trial == {
        "event": "trial", "trial": 1, "source": "sampler", "state": "stopped-early",
        "knobs": {"fusion_bytes": 4 << 20, "cycle_time_ns": 500_000}, "knobs_version": 4, "steps": 3,
        "step_ns": {"median": 1e6, "low": 1e6, "high": 2e6}, "gain": HALF.as_dict(),
        "bytes": 8_000_000, "lost_ns": -7,
    }  # fmt: skip
    assert note == {"event": "note", "message": "the advisor is gone"}
    assert result == {
        "event": "result", "decision": "improved", "knobs": {"fusion_bytes": 4 << 20, "cycle_time_ns": 500_000},
        "knobs_version": 9, "gain": HALF.as_dict(), "lost_ns": -90, "reason": "confirmed", "trials": 2,
    }  # fmt: skip


def test_lines_are_read_back_as_records(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.write(RECORDS)
    events = [parse_line(line) for line in path.read_bytes().splitlines()]
    assert [parse(event) for event in events if event is not None] == RECORDS


def test_keys_of_earlier_versions_are_read() -> None:
    negotiated = replace(FAST, step_schedule=0)
    record = TrialRecord(1, "switch", "complete", negotiated, 4, 3, Interval(1e6, 1e6, 2e6))
    line = record.as_dict()
    line["epoch"], line["knobs"]["plan"] = line.pop("knobs_version"), line["knobs"].pop("step_schedule")
    assert parse(line) == record
    description = {"world": 2, "fixed": [["plan", 1], ["algorithm", 0]], "searched": ["fusion_bytes", "plan"]}
    now = JobDescription(world=2, searched=("fusion_bytes", "step_schedule"), fixed=(("segment_bytes", 1),))
    before = JobDescription(world=2, searched=("fusion_bytes", "plan"), fixed=(("segment_bytes", 1),))
    assert now.fingerprint(Workload(1, 8)) == before.fingerprint(Workload(1, 8))
    assert current(description) == {
        "world": 2, "fixed": [("step_schedule", 1), ("algorithm", 0)], "searched": ["fusion_bytes", "step_schedule"],
    }  # fmt: skip


def test_torn_and_foreign_lines_are_none() -> None:
    assert parse_line(b'{"event":"tri') is None and parse_line(b"[1]") is None and parse_line(b"{}") is None
    assert parse({"event": "from the future"}) is None


def test_every_line_is_on_disk_at_once(tmp_path: Path) -> None:
    path, csv = tmp_path / "journal.jsonl", tmp_path / "log.csv"
    with Journal(path, csv) as journal:
        for number, record in enumerate(RECORDS):
            journal.write([record])
            assert path.read_bytes().count(b"\n") == number + 1
        assert csv.read_bytes().endswith(b"\n")


def test_a_second_session_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for _ in range(2):
        with Journal(path) as journal:
            journal.write(RECORDS)
    assert path.read_bytes().count(b"\n") == 2 * len(RECORDS)


def test_horovods_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("of an earlier run")
    with Journal(None, path) as journal:
        journal.write(RECORDS)
    assert path.read_text().splitlines() == [
        CSV_HEADER,
        f"0,0,0, 1,1,{DEFAULTS.fusion_bytes >> 20},4000",  # 8 MB in 2 ms = 4000 bytes a microsecond
        "0,0,0, 1,0.5,4,8000",
        "0,0,0, 1,0.5,4,8000",
    ]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RingtuneError, match=r"cannot write .*/file/log.csv"):
        Journal(tmp_path / "journal.jsonl", tmp_path / "file" / "log.csv")


def test_a_full_disk_is_said_once_and_the_rest_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, Path("/dev/full")) as journal:
        journal.write(RECORDS)
    assert len(path.read_bytes().splitlines()) == len(RECORDS)
    said = "ringtune warning: /dev/full ends here, the tuning goes on: No space left on device\n"
    assert capsys.readouterr().err == said
