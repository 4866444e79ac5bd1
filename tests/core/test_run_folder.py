from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ringtune import layout, runfolder
from ringtune.errors import RingtuneError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.meters.step_log import StepLog
from ringtune.runfolder import RunRecord
from ringtune.stats import StepStats

FIELDS = {
    "format", "name", "command", "created_unix_ns", "ended_unix_ns", "status", "exit_code", "size", "hosts", "config",
    "knobs", "versions", "labels", "failure", "failed_starts", "generations",
}  # fmt: skip
STEP_FIELDS = {
    "step", "knobs_version", "begin_ns", "end_ns", "bytes", "collectives", "batches", "negotiate_ns", "communicate_ns",
    "copy_ns", "wait_ns", "control_messages", "control_bytes",
}  # fmt: skip


def test_create_writes_all_fields(tmp_path: Path) -> None:
    runfolder.create(tmp_path, RunRecord("job", command=["python", "x.py"]))
    found = json.loads((tmp_path / "run.json").read_text())
    assert set(found) == FIELDS
    assert (found["format"], found["status"], found["exit_code"]) == (1, "running", None)
    assert set(found["versions"]) == {"ringtune", "python", "torch"}


def test_begin_clears_what_ranks_of_an_earlier_job_left(tmp_path: Path) -> None:
    kept = [layout.tuning_journal(tmp_path), layout.scaling_file(tmp_path, "resnet"), tmp_path / "steps" / "my notes"]
    gone = [layout.step_log(tmp_path, 7), layout.timeline_part(tmp_path, 0), layout.machine_file(tmp_path, 2)]
    gone += [layout.log_file(tmp_path, 1), layout.timeline_file(tmp_path)]
    for path in (*kept, *gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    runfolder.begin(tmp_path, RunRecord("job"))
    assert [path for path in kept if not path.exists()] == []
    assert [path for path in gone if path.exists()] == []
    assert runfolder.read(tmp_path) is not None


def test_update_keeps_what_it_does_not_name_and_merges_labels(tmp_path: Path) -> None:
    runfolder.create(tmp_path, RunRecord("job", labels={"a": "1"}))
    runfolder.update(tmp_path, size=3, labels={"b": "2"})
    found = runfolder.read(tmp_path)
    assert found is not None
    assert (found["name"], found["size"], found["labels"]) == ("job", 3, {"a": "1", "b": "2"})


@pytest.mark.parametrize(("code", "status"), [(0, "finished"), (None, "finished"), (1, "failed"), (-9, "failed")])
def test_finish(code: int | None, status: str, tmp_path: Path) -> None:
    runfolder.create(tmp_path, RunRecord("job"))
    runfolder.finish(tmp_path, code)
    found = runfolder.read(tmp_path)
    assert found is not None
    assert (found["status"], found["exit_code"]) == (status, code)
    assert found["ended_unix_ns"] >= found["created_unix_ns"]


def test_a_document_is_replaced_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runfolder.create(tmp_path, RunRecord("before"))
    replaced = []
    real = os.replace

    def spy(source: Path, target: Path) -> None:
        assert json.loads(Path(source).read_text())["name"] == "after"
        assert json.loads(Path(target).read_text())["name"] == "before"
        replaced.append(target)
        real(source, target)

    monkeypatch.setattr(os, "replace", spy)
    runfolder.create(tmp_path, RunRecord("after"))
    assert replaced == [tmp_path / "run.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_half_a_document_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"name": ')
    assert runfolder.read(tmp_path) is None
    assert runfolder.read(tmp_path / "nowhere") is None


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RingtuneError, match=r"file/run/run.json: cannot be written: Not a directory"):
        runfolder.create(tmp_path / "file" / "run", RunRecord("job"))


def test_planned_folders_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 0)
    first = runfolder.planned_folder("a b", tmp_path)
    assert first.name.startswith("a-b-") and not first.exists()
    first.mkdir()
    assert runfolder.planned_folder("a b", tmp_path).name == f"{first.name}-2"


def test_machine(tmp_path: Path) -> None:
    runfolder.write_machine(tmp_path, 3, "node1")
    found = json.loads(layout.machine_file(tmp_path, 3).read_text())
    assert (found["rank"], found["host"], found["pid"]) == (3, "node1", os.getpid())
    assert found["cores"] >= 1 and found["memory_bytes"] > 1 << 20 and found["cpu"] and found["kernel"]


def test_step_log_lines(tmp_path: Path) -> None:
    log = StepLog(tmp_path, 1)
    for step in range(3):
        log.append(StepStats(step=step, begin_ns=1, end_ns=5, world_step=9))
    log.close()
    lines = [json.loads(line) for line in layout.step_log(tmp_path, 1).read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert set(lines[0]) == STEP_FIELDS
    assert StepStats.from_dict(lines[0]).wall_ns == 4


def test_step_log_grows_over_sessions(tmp_path: Path) -> None:
    for step in range(2):
        log = StepLog(tmp_path, 0)
        log.append(StepStats(step=step))
        log.close()
    assert len(layout.step_log(tmp_path, 0).read_text().splitlines()) == 2


def test_step_log_in_a_bad_place(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("")
    with pytest.raises(RingtuneError, match="cannot be written"):
        StepLog(tmp_path, 0)


def test_knobs_from_a_dictionary() -> None:
    assert Knobs.from_dict({"fusion_bytes": 5, "knobs_version": 3}) == Knobs(fusion_bytes=5)
    assert Knobs.from_dict({"cycle_time_ns": 0}, Knobs(fusion_bytes=5)) == Knobs(fusion_bytes=5, cycle_time_ns=0)
    assert Knobs.from_dict(DEFAULTS.as_dict()) == DEFAULTS


def test_keys_of_earlier_versions_are_read() -> None:
    assert Knobs.from_dict({"plan": 0, "epoch": 3}) == Knobs(step_schedule=0)
    assert Knobs.from_dict({"plan": 0, "step_schedule": 1}) == Knobs()
    assert StepStats.from_dict({"step": 4, "epoch": 3, "bytes": 8}) == StepStats(step=4, knobs_version=3, bytes=8)


@pytest.mark.parametrize("name", ["fusion_bytes", "cycle_time_ns", "segment_bytes", "cache_capacity"])
def test_knobs_out_of_range(name: str) -> None:
    with pytest.raises(ValueError, match=f"knob {name}: got -1"):
        Knobs(**{name: -1})
