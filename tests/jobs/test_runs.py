"""What a job leaves behind, and scripts as users start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ringtune import layout
from ringtune.timeline.reading.reader import read
from ringtune.timeline.vocabulary import Stage
from tests.jobs.cases import common, training
from tests.jobs.launching import Job, variables, wait_until

GetJob = Callable[..., Job]
STAGES = {"negotiate", "queue", "communicate", "wait", "step", "range", "callback"}
#: In shared memory the reduction reads and writes the tensors where they lie: no fusion buffer to copy to and from.
COPIES = {"shm": set[str](), "tcp": {"copy_in", "copy_out"}}


def test_step_statistics_count_what_was_reduced(fresh: GetJob, tmp_path: Path) -> None:
    job = fresh(2, run_dir=tmp_path / "run")
    for rank, steps in enumerate(job.run(training.steps, count=4)):
        assert [step["step"] for step in steps] == [0, 1, 2, 3]
        assert all(step["collectives"] == 3 and step["bytes"] == 1200 for step in steps)
        assert all(1 <= step["batches"] <= 3 and step["end_ns"] > step["begin_ns"] for step in steps)
        assert all(a["end_ns"] == b["begin_ns"] for a, b in pairwise(steps))
        lines = layout.step_log(tmp_path / "run", rank).read_text().splitlines()
        assert [json.loads(line) for line in lines] == steps


def test_the_run_folder_of_a_job(fresh: GetJob, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fresh(3, run_dir=run).run(common.close_session)
    found = json.loads(layout.run_file(run).read_text())
    assert (found["size"], len(found["hosts"]), found["status"]) == (3, 3, "finished")
    assert found["ended_unix_ns"] >= found["created_unix_ns"]
    machines = [json.loads(layout.machine_file(run, rank).read_text()) for rank in range(3)]
    assert [machine["rank"] for machine in machines] == [0, 1, 2]


def test_ranks_agree_on_a_folder_that_nobody_named(fresh: GetJob, tmp_path: Path) -> None:
    base = tmp_path / "work"
    base.mkdir()
    job = fresh(2, join=False, timeline=tmp_path / "trace.json")
    job.run(common.open_session_in, folder=str(base))
    job.run(common.close_session)
    (run,) = (base / "runs").iterdir()
    assert {path.name for path in layout.timeline_parts(run).iterdir()} == {"rank-00000.spans", "rank-00001.spans"}
    assert json.loads(layout.run_file(run).read_text())["labels"]["timeline"] == str(tmp_path / "trace.json")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_parts_of_the_timeline_hold_every_stage_of_every_tensor(transport: str, fresh: GetJob, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = fresh(2, run_dir=run, timeline=tmp_path / "t.json", transport=transport)
    job.run(training.steps, count=3)
    job.run(common.close_session)
    for rank in range(2):
        spans = read(layout.timeline_part(run, rank)).spans
        stages = {Stage(stage).label for stage in spans.stage.tolist()} - {"await", "queue", "counter", "cycle"}
        assert stages == STAGES - {"queue"} | COPIES[transport]
        assert set(spans.rank.tolist()) == {rank}
        negotiated = spans.of_stage(Stage.NEGOTIATE).tensor_texts()
        assert sorted(negotiated) == sorted(f"allreduce.s.{i}" for i in range(3) for _ in range(3))


def test_parts_are_whole_after_sigkill(fresh: GetJob, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = fresh(2, run_dir=run, timeline=tmp_path / "t.json")
    job.run(training.steps, count=50)
    job.start(training.steps, count=1_000_000)
    wait_until(lambda: all(layout.step_log(run, rank).stat().st_size > 20_000 for rank in range(2)))
    parts = [layout.timeline_part(run, rank) for rank in range(2)]
    wait_until(lambda: all(len(read(part).spans.of_stage(Stage.STEP)) > 50 for part in parts))
    for rank in job.ranks:
        rank.signal(signal.SIGKILL)
    assert job.collect() == [None, None]
    for rank in range(2):
        part = read(layout.timeline_part(run, rank))
        assert part.parts[0].truncated and part.skipped == 0
        steps = part.spans.of_stage(Stage.STEP).step
        assert np.array_equal(steps, np.arange(len(steps))) and len(steps) > 50, "none is lost, none is invented"
        lines = layout.step_log(run, rank).read_text().splitlines()
        assert json.loads(lines[-1])["step"] > 50


@pytest.mark.parametrize("size", [1, 2])
def test_a_forked_child_does_not_disturb_the_job(size: int, fresh: GetJob) -> None:
    assert fresh(size).run(training.fork_and_reduce) == [(7, float(size))] * size


SCRIPT = """
import os, sys, torch, ringtune.torch as hvd
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
os.write(1, f"{hvd.rank()} {hvd.size()} {total}\\n".encode())
if "fail" in sys.argv:
    raise RuntimeError("mistake of the script")
"""


def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def run(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTUNE_", "HOROVOD_"))}
    return subprocess.run(
        command, env={**clean, "OMP_NUM_THREADS": "1", **environ}, capture_output=True, text=True, timeout=150
    )


def test_a_script_started_alone_is_a_job_of_one(tmp_path: Path) -> None:
    done = run([sys.executable, script(tmp_path)])
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1 1.0\n", "")


def test_a_script_that_fails_leaves_a_failed_run(tmp_path: Path) -> None:
    done = run([sys.executable, script(tmp_path), "fail"], RINGTUNE_RUN_DIR=str(tmp_path / "run"))
    assert done.returncode == 1 and "mistake of the script" in done.stderr
    found = json.loads(layout.run_file(tmp_path / "run").read_text())
    assert (found["name"], found["status"], found["exit_code"]) == ("train", "failed", 1)


@pytest.mark.slow
def test_a_misspelt_variable_is_one_clear_error(tmp_path: Path) -> None:
    done = run([sys.executable, script(tmp_path)], RINGTUNE_FUSION_TRESHOLD="1")
    assert done.returncode == 1
    assert "ConfigError: RINGTUNE_FUSION_TRESHOLD='1': there is no such variable; did you mean" in done.stderr


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*command, script(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "0 2 3.0", "1 2 3.0"]


@pytest.mark.slow
def test_one_failing_script_ends_the_others(tmp_path: Path) -> None:
    environ = variables(2)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT.replace('"fail" in sys.argv', "hvd.rank() == 1") + "hvd.barrier()"],
            env={**os.environ, **{name: value.replace("{rank}", str(rank)) for name, value in environ.items()}},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert "mistake of the script" in errors[1]
    assert "ShutDown" in errors[0] or "PeerLost" in errors[0], errors[0]
