"""Elastic jobs with real processes: ranks that die, hosts that come and go."""

from __future__ import annotations

import json
import stat
import sys
import textwrap
from pathlib import Path

import pytest

from ringtune.launch.discovery import parse_lines
from ringtune.launch.hosts import Host
from tests.launch.conftest import Jobs, wait_for

TRAIN = """
import json, os, signal, sys, time
from pathlib import Path
import torch
import ringtune.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 1)
base, compression = torch.optim.SGD(model.parameters(), lr=0.01), hvd.Compression.COMPRESSION
optimizer = hvd.DistributedOptimizer(base, model.named_parameters(), compression=compression)
folder, batches = Path(sys.argv[1]), int(sys.argv[2])

def once(name):
    try:
        (folder / name).touch(exist_ok=False)
        return True
    except FileExistsError:
        return False

@hvd.elastic.run
def train(state):
    print("begin", json.dumps([hvd.rank(), hvd.size(), state.batch]), flush=True)
    while state.batch < batches:
        optimizer.zero_grad()
        model(torch.full((2, 4), float(state.batch))).sum().backward()
        optimizer.step()
        state.batch += 1
        event(state)
        if state.batch % 5 == 0:
            state.commit()
    same = hvd.allgather(model.weight.detach())
    assert torch.equal(same, same[:1].expand_as(same))
    print("end", json.dumps([hvd.rank(), hvd.size(), state.batch]), flush=True)

def event(state):
    EVENT

train(hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0))
"""


def train(
    jobs: Jobs,
    event: str,
    batches: int,
    *flags: str,
    compression: str = "none",
    run: str = "--no-run-dir",
    **variables: str,
) -> tuple[int, list[list[int]], list[list[int]], str]:
    """Run the training script; return exit code, what `begin` and `end` lines say, and the launcher's words."""
    text = textwrap.dedent(event).strip().replace("\n", "\n    ")
    script = jobs.folder / "train.py"
    script.write_text(TRAIN.replace("EVENT", text).replace("COMPRESSION", compression), encoding="utf-8")
    command = (run, *flags, sys.executable, str(script), str(jobs.folder), str(batches))
    result = jobs.run(*command, environ=variables)
    said = {
        word: [json.loads(line.split(f"{word} ")[1]) for line in result.stdout.splitlines() if f" {word} " in line]
        for word in ("begin", "end")
    }
    return result.returncode, said["begin"], said["end"], result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "compression", ["none", pytest.param("topk(ratio=0.5, min_elements=2)", marks=pytest.mark.long)]
)
def test_a_killed_rank_is_replaced_and_training_goes_on_from_the_commit(compression: str, jobs: Jobs) -> None:
    event = """
    if state.batch == 8 and hvd.rank() == 1 and once("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    """
    code, begin, end, said = train(jobs, event, 20, "-np", "2", "--min-np", "1", compression=compression)
    assert code == 0, said
    assert sorted(begin[:2]) == [[0, 2, 0], [1, 2, 0]]
    assert sorted(begin[2:]) == [[0, 2, 5], [1, 2, 5]]
    assert sorted(end) == [[0, 2, 20], [1, 2, 20]]
    assert "was killed by SIGKILL" in said and "generation 2: 2 ranks" in said


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_frozen_rank_is_ended_and_replaced(victim: int, jobs: Jobs) -> None:
    event = f"""
    if state.batch == 8 and hvd.rank() == {victim} and once("frozen"):
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    flags = ("-np", "2", "--min-np", "2", "--elastic-timeout", "20")
    code, begin, end, said = train(jobs, event, 20, *flags, RINGTUNE_LIVENESS_TIMEOUT="2")
    assert code == 0, said
    assert sorted(begin[2:]) == [[0, 2, 5], [1, 2, 5]]
    assert sorted(end) == [[0, 2, 20], [1, 2, 20]]
    assert "ending the rank, which stands stopped for 10 s" in said and "generation 2: 2 ranks" in said


@pytest.mark.slow
def test_goes_on_with_fewer_ranks_than_at_the_start(jobs: Jobs) -> None:
    event = """
    if state.batch == 8 and hvd.rank() == 0 and once("failed"):
        sys.exit(3)
    """
    code, begin, end, said = train(jobs, event, 20, "-np", "2", "--min-np", "1", "-H", "localhost:1,127.0.0.1:1")
    assert code == 0, said
    assert begin[2:] == [[0, 1, 5]]
    assert end == [[0, 1, 20]]
    assert "no new ranks on localhost" in said


@pytest.mark.slow
def test_too_few_ranks_end_the_job_with_the_failure_s_code(jobs: Jobs) -> None:
    event = """
    if state.batch == 8 and hvd.rank() == 0:
        sys.exit(3)
    """
    code, _, end, said = train(jobs, event, 20, "-np", "2", "--min-np", "2", "-H", "localhost:1,127.0.0.1:1")
    assert code == 3
    assert end == []
    assert "1 ranks are left, at least 2 are needed" in said


def test_a_script_that_cannot_start_ends_the_job(jobs: Jobs) -> None:
    result = jobs.run("-np", "2", "--min-np", "1", "--no-run-dir", sys.executable, "-c", "raise SystemExit(7)")
    assert result.returncode == 7
    assert result.stderr.count("exited with code 7") <= 4


def discovery_script(folder: Path, hosts: str) -> tuple[str, Path]:
    """Write a script that prints the lines of a file; return its path and the file."""
    file, script = folder / "hosts.txt", folder / "discover.sh"
    file.write_text(hosts, encoding="utf-8")
    script.write_text(f"#!/bin/sh\ncat {file}\n", encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script), file


@pytest.mark.slow
def test_new_slots_join_the_running_job(jobs: Jobs) -> None:
    script, file = discovery_script(jobs.folder, "localhost:1\n")
    event = f"""
    if hvd.size() == 1:
        if once("grown"):
            Path({str(file)!r}).write_text("localhost:2\\n")
        state.batch = min(state.batch, 5)  # until the second rank is there
        time.sleep(0.05)
    """
    code, begin, end, said = train(jobs, event, 20, "-np", "1", "--max-np", "2", "--host-discovery-script", script)
    assert code == 0, said
    assert begin[0] == [0, 1, 0]
    assert sorted(rank for rank, size, _ in begin[1:] if size == 2) == [0, 1]
    assert sorted(end) == [[0, 2, 20], [1, 2, 20]]


@pytest.mark.slow
def test_a_host_taken_away_leaves_the_job(jobs: Jobs) -> None:
    script, file = discovery_script(jobs.folder, "localhost:1\n127.0.0.1\n")
    event = f"""
    if hvd.size() == 2:
        if hvd.rank() == 0 and once("shrunk"):
            Path({str(file)!r}).write_text("localhost:1\\n")
        state.batch = min(state.batch, 5)
        time.sleep(0.05)
    """
    code, begin, end, said = train(jobs, event, 20, "-np", "2", "--min-np", "1", "--host-discovery-script", script)
    assert code == 0, said
    assert end == [[0, 1, 20]]
    assert "leaves the job: host 127.0.0.1 has been taken from the job" in said
    assert len(begin) == 3


@pytest.mark.slow
def test_a_host_with_fewer_slots_gives_up_a_rank(jobs: Jobs) -> None:
    script, file = discovery_script(jobs.folder, "localhost:3\n")
    event = f"""
    if hvd.size() == 3:
        if hvd.rank() == 0 and once("shrunk"):
            Path({str(file)!r}).write_text("localhost:2\\n")
        state.batch = min(state.batch, 5)
        time.sleep(0.05)
    """
    code, begin, end, said = train(jobs, event, 20, "-np", "3", "--min-np", "1", "--host-discovery-script", script)
    assert code == 0, said
    assert sorted(end) == [[0, 2, 20], [1, 2, 20]]
    assert "leaves the job: host localhost has fewer slots now" in said
    assert sorted(begin[3:]) == [[0, 2, begin[3][2]], [1, 2, begin[3][2]]]


@pytest.mark.slow
def test_the_state_outlives_all_hosts_that_it_was_made_on(jobs: Jobs) -> None:
    script, file = discovery_script(jobs.folder, "localhost:2\n")
    event = f"""
    if hvd.broadcast_object(os.environ["RINGTUNE_HOSTNAME"], 0) == "localhost":  # alike on all ranks
        if once("replaced"):
            Path({str(file)!r}).write_text("127.0.0.1:2\\n")
        state.batch = min(state.batch, 5)
        time.sleep(0.05)
    """
    code, begin, end, said = train(jobs, event, 20, "-np", "2", "--min-np", "1", "--host-discovery-script", script)
    assert code == 0, said
    assert sorted(end) == [[0, 2, 20], [1, 2, 20]]
    assert said.count("has been taken from the job") == 2
    assert all(batch == 5 for _, _, batch in begin[2:]), begin


def test_interrupt_ends_all(jobs: Jobs) -> None:
    process = jobs.start(
        "-np", "2", "--min-np", "1", "--no-run-dir", sys.executable, "-c", "import time; print('up'); time.sleep(280)"
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert b"up" in first
    process.terminate()
    wait_for(lambda: process.poll() is not None)
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-np", "2", "--min-np", "3"), "expected 1 <= --min-np <= -np"),
        (("-np", "2", "--max-np", "1"), "<= --max-np"),
        (("-np", "2", "--reset-limit", "1"), "--reset-limit is for elastic jobs"),
        (("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "5", "1"), "the first must be the smaller"),
        (("-np", "2", "--host-discovery-script", "/nowhere/x"), "cannot be run"),
    ],
)
def test_what_cannot_work_is_said(jobs: Jobs, flags: tuple[str, ...], words: str) -> None:
    result = jobs.run(*flags, "--no-run-dir", sys.executable, "-c", "pass")
    assert result.returncode == 2
    assert words in result.stderr


def test_lines_of_a_discovery_script() -> None:
    assert parse_lines(["a:2", "", "b"], 4, "script") == [Host("a", 2), Host("b", 4)]
