from __future__ import annotations

import json
import math
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from ringtune import layout
from ringtune.dashboard.data import machine, scaling, steps
from ringtune.dashboard.data.cache import Cache
from ringtune.dashboard.data.files import Unreadable, open_inside, read_document
from ringtune.dashboard.data.jsonlines import JsonRows
from ringtune.dashboard.data.runs import RunsFolder, UnknownRun, read_run
from ringtune.timeline.synthetic.generate import Schedule, generate
from tests.dashboard.folders import change, training
from tests.timeline.generated_run import generate_run

PLAN = Schedule(ranks=3, steps=6, late_rank=2, late_ns=2_000_000)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return generate_run(tmp_path, "exact", PLAN)


def test_the_breakdown_of_a_generated_run_is_exact(run: Path) -> None:
    truth = generate(PLAN).truth
    parts = steps.StepReader(run).read().parts
    assert [part.rank for part in parts] == [0, 1, 2]
    for part in parts:
        wall = truth.step_ns[1]
        wait = truth.wait_ns[part.rank] / PLAN.steps
        busy = (truth.communicate_ns + truth.copy_in_ns + truth.copy_out_ns) / PLAN.steps
        assert part.steps == PLAN.steps - 1
        assert part.wall_ns == wall
        assert part.blocked_ns == wait
        # The late rank is blocked least, and for the others: what it is blocked for is exposed communication.
        assert part.exposed_ns == truth.wait_ns[PLAN.late_rank] / PLAN.steps
        assert part.waiting_ns == (PLAN.late_ns if part.rank != PLAN.late_rank else 0)
        assert part.overlapped_ns == max(0, busy - wait)
        assert part.alone_ns + part.overlapped_ns + part.exposed_ns + part.waiting_ns == part.wall_ns


def test_the_summary_names_the_late_rank(run: Path) -> None:
    found = steps.StepReader(run).read().summary
    assert found is not None
    assert (found.steps, found.latest_rank) == (6, 2)
    assert found.median_ns == generate(PLAN).truth.step_ns[1]
    assert found.bytes_per_step == sum(volume for _, volume in PLAN.tensors)
    assert found.batches_per_step == 2
    assert found.latest_lead > 0.1


def test_no_steps_no_summary(tmp_path: Path) -> None:
    assert steps.StepReader(tmp_path).read().summary is None
    assert steps.lines(steps.Steps(())) == []


def test_lines_leave_out_the_warm_up_and_share_buckets() -> None:
    rows = [{"step": n, "begin_ns": 0, "end_ns": n} for n in range(6001)]
    (line,) = steps.lines(steps.Steps((steps.rank_steps(0, rows),)))
    assert len(line.step) == steps.POINT_LIMIT
    assert (line.low_ns[0], line.median_ns[0], line.high_ns[0]) == (1, 5.5, 10)


def test_many_ranks_become_one_line() -> None:
    ranks = tuple(steps.rank_steps(r, [{"step": 1, "end_ns": 10 + r}, {"step": 2, "end_ns": 20}]) for r in range(9))
    (line,) = steps.lines(steps.Steps(ranks))
    assert line.label == "median of 9 ranks"
    assert (line.low_ns[0], line.median_ns[0], line.high_ns[0]) == (10, 14, 18)


def test_a_growing_log_is_read_once_and_a_torn_line_later(run: Path) -> None:
    path = layout.step_log(run, 0)
    follower = JsonRows(run, path)
    assert follower.follow() == 6
    with path.open("a") as stream:
        stream.write('{"step":6}\n{"st')
    assert follower.follow() == 1
    with path.open("a") as stream:
        stream.write('ep":7}\n')
    assert follower.follow() == 1
    assert [row["step"] for row in follower.rows] == list(range(8))
    assert follower.problems == []


def test_a_replaced_log_is_read_anew(run: Path) -> None:
    path = layout.step_log(run, 0)
    follower = JsonRows(run, path)
    follower.follow()
    fresh = path.with_suffix(".new")
    fresh.write_text('{"step":0}\n')
    os.replace(fresh, path)
    assert follower.follow() == 1
    assert len(follower.rows) == 1


def test_broken_lines_are_named_and_left_out(run: Path) -> None:
    path = layout.step_log(run, 1)
    path.write_text('{"step":0}\nnonsense\n[1]\n{"step":1,"end_ns":"x","wait_ns":1e300}\n')
    table = steps.StepReader(run).read()
    assert [len(rank) for rank in table.ranks] == [6, 2, 6]
    assert [line.split("jsonl ")[1] for line in table.problems] == [
        "line 2 is not valid JSON; it is left out",
        "line 3 is not a JSON object; it is left out",
    ]
    assert table.summary is not None


def test_scaling_is_sorted_and_knows_the_ideal(run: Path) -> None:
    (series,) = scaling.data([read_run("a/b", run)]).series
    assert series.id == "a/b/resnet"
    assert [point.ranks for point in series.points] == [1, 2]
    assert series.ideal() == ([1, 2], [20.0, 40.0])
    assert series.facts == "resnet, weak scaling, batch 8 a rank, 224 × 224 pixels, float32"


def test_scaling_records_without_rates_are_named(run: Path) -> None:
    layout.scaling_file(run, "resnet").write_text('{"records":[{"ranks":0,"rate":{"median":1}}]}')
    table = scaling.data([read_run("r", run)])
    assert table.series == ()
    assert table.problems == ("r/scaling/resnet.json: holds no record with ranks and a rate",)


def test_machines_and_last_words(runs: dict[str, Path]) -> None:
    failed = read_run("f", runs["failed"])
    assert [one.rank for one in machine.data(failed).machines] == [0, 1]
    assert machine.last_words(failed) == {1: ["epoch 3", "RuntimeError: PeerLost: rank 0 is gone"]}


def test_statuses_of_runs(runs: dict[str, Path], root: Path) -> None:
    rows = {row.info.name: row for row in RunsFolder(root).rows()}
    found = {name: (row.info.status, row.info.ending) for name, row in rows.items()}
    assert found["resnet50"] == ("finished", "finished after 2 min 00 s")
    assert found["digits-crash"] == ("failed", "ended by SIGKILL after 1 min 40 s")
    assert found["digits-live"] == ("live", "")
    assert rows["resnet50"].info.tags == ("model=resnet50", "batch=32")
    assert rows["resnet50"].steps == 60
    assert math.isnan(rows["just-started"].step_ns)


def test_a_run_whose_processes_are_gone_is_lost(run: Path) -> None:
    import socket

    change(run, status="running", exit_code=None, ended_unix_ns=None)
    for rank in range(3):
        layout.machine_file(run, rank).write_text(json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1 + rank}))
    assert read_run("x", run).status == "lost"


def test_a_silent_run_is_lost(run: Path) -> None:
    change(run, status="running", exit_code=None)
    assert read_run("x", run).status == "live"
    old = time.time() - 3600
    for path in run.rglob("*"):
        os.utime(path, (old, old))
    assert read_run("x", run).ending.startswith("lost: wrote nothing for 1 h 00 min")


def test_a_watched_run_is_lost_as_soon_as_its_last_process_is_gone_and_live_when_it_is_started_again(
    run: Path,
) -> None:
    import socket

    change(run, status="running", exit_code=None, ended_unix_ns=None)
    folder = RunsFolder(run.parent)
    job = subprocess.Popen(["sleep", "280"])
    for rank, pid in enumerate((2**22 + 1, 2**22 + 2, job.pid)):
        layout.machine_file(run, rank).write_text(json.dumps({"host": socket.gethostname(), "pid": pid}))
    assert folder.find(run.name).status == "live"
    job.kill()
    job.wait()
    assert folder.find(run.name).status == "lost"
    layout.machine_file(run, 0).write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
    assert folder.find(run.name).status == "live"


def test_a_run_is_found_again_without_a_search_and_not_behind_a_link(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunsFolder(run.parent)
    searched: list[int] = []
    search = folder.paths
    monkeypatch.setattr(folder, "paths", lambda: [searched.append(1), search()][1])
    assert folder.find(run.name) is folder.find(run.name)
    assert len(searched) == 1
    change(run, name="other")
    assert folder.find(run.name).name == "other"
    run.rename(run.parent / ".elsewhere")
    run.symlink_to(run.parent / ".elsewhere")
    with pytest.raises(UnknownRun):
        folder.find(run.name)


def test_runs_are_found_two_levels_deep_and_alone(tmp_path: Path) -> None:
    generate_run(tmp_path, "top", Schedule(ranks=1, steps=1))
    inner = generate_run(tmp_path / "demo", "inner", Schedule(ranks=1, steps=1))
    found = set(RunsFolder(tmp_path).paths())
    assert found == {"top-" + inner.name.removeprefix("inner-"), f"demo/{inner.name}"}
    assert set(RunsFolder(inner).paths()) == {inner.name}


@pytest.mark.parametrize("run_id", ["..", "../..", "/etc", "nothing", "", "a\x00b"])
def test_ids_that_are_no_runs_are_unknown(root: Path, run_id: str) -> None:
    with pytest.raises(UnknownRun):
        RunsFolder(root).find(run_id)


def test_links_out_of_the_folder_are_not_followed(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"host":"secret"}')
    link = layout.machine_file(run, 0)
    link.unlink()
    link.symlink_to(secret)
    table = machine.data(read_run("x", run))
    assert [one.rank for one in table.machines] == [1, 2]
    assert table.problems == ("machine/rank-00000.json is a link out of the run's folder; it is not followed",)
    assert "secret" not in str(table.machines)


def test_linked_runs_and_folders_are_not_followed(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "served"
    outside.mkdir()
    (outside / "linked").symlink_to(run)
    assert RunsFolder(outside).paths() == {}
    folder = layout.step_logs(run)
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert len(steps.StepReader(run).read()) == 0


def test_pipes_and_large_documents_are_not_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = run / "machine" / "rank-00009.json"
    os.mkfifo(pipe)
    with pytest.raises(Unreadable, match="not a regular file"):
        open_inside(run, pipe)
    with pytest.raises(Unreadable, match="is not valid JSON"):
        layout.machine_file(run, 0).write_text("{" * 100_000)
        read_document(run, layout.machine_file(run, 0))
    with pytest.raises(Unreadable, match="larger than 16 MiB"):
        layout.machine_file(run, 0).write_bytes(b" " * (16 * 2**20 + 1))
        read_document(run, layout.machine_file(run, 0))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '"text"', "\x00\xff", '{"status":[1],"size":"many"}', '{"size":1e400}']
)
def test_a_broken_description_gives_a_row_that_says_so(tmp_path: Path, content: str) -> None:
    run = tmp_path / "broken"
    run.mkdir()
    layout.run_file(run).write_text(content)
    (row,) = RunsFolder(tmp_path).rows()
    assert row.info.status == "unreadable"
    assert row.info.ending
    assert "Traceback" not in row.info.ending


def test_the_cache_builds_once_a_signature() -> None:
    built: list[int] = []
    cache = Cache(2)
    for signature in (1, 1, 2, 2, 1):
        cache.get("key", signature, lambda: built.append(1))
    assert len(built) == 3


def test_steps_of_a_large_run_are_read_quickly(tmp_path: Path) -> None:
    run = training(tmp_path, ranks=2, steps=50)
    reader = steps.StepReader(run)
    first = reader.read()
    assert reader.read() is first
    assert np.array_equal(first.ranks[0].step, np.arange(50))


def test_peers_of_a_benchmark_are_series_of_their_own(tmp_path: Path) -> None:
    run = generate_run(tmp_path)
    path = next(layout.scaling_folder(run).glob("*.json"))
    record = json.loads(path.read_text())
    record["peers"] = {"ddp-gloo": {"records": record["records"][:1]}}
    path.write_text(json.dumps(record))
    found = {series.id.split("/")[-1]: series for series in scaling.data([read_run("x", run)]).series}
    peer = found[f"{path.stem}@ddp-gloo"]
    assert [point.ranks for point in peer.points] == [record["records"][0]["ranks"]]
    assert peer.label.endswith("· ddp-gloo")


def test_damaged_peers_are_named(tmp_path: Path) -> None:
    run = generate_run(tmp_path)
    path = next(layout.scaling_folder(run).glob("*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "peers": {"x": 3}}))
    table = scaling.data([read_run("x", run)])
    assert any('expected an object with a list "records"' in problem for problem in table.problems)
