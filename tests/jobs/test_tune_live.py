"""``ringtune tune`` on a real training of two ranks: many small gradients and a default that is far too slow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from ringtune import layout

# Twenty small layers, trained for the given number of steps or for twenty from when the journal holds the given text.
SCRIPT = """
import os
import sys
import torch
import ringtune.torch as hvd

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [layer for _ in range(20) for layer in (torch.nn.Linear(32, 32), torch.nn.Tanh())]
model = torch.nn.Sequential(*layers)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
inputs = torch.randn(8, 32)
journal = os.path.join(os.environ["RINGTUNE_RUN_DIR"], "tuning", "journal.jsonl")
found = False
for step in range(int(sys.argv[1])):
    if step % 20 == 19:
        if found:  # and some steps were made with what it says
            break
        enough = os.path.exists(journal) and sys.argv[2] in open(journal).read()
        found = hvd.broadcast_object(enough, root_rank=0)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
print("checksum", sum(parameter.double().sum().item() for parameter in model.parameters()), flush=True)
hvd.shutdown()
"""


# An update of one's own, of arrays without names; nobody says where a step ends.
WITHOUT_OPTIMIZER = """
import os
import sys
import time
import numpy as np
import ringtune.numpy as hvd

hvd.init()
journal = os.path.join(os.environ["RINGTUNE_RUN_DIR"], "tuning", "journal.jsonl")
weights = [hvd.broadcast(np.full(shape, 1.0 + hvd.rank()), root_rank=0) for shape in ((64, 32), (64,), (16, 64), (16,))]
for step in range(int(sys.argv[1])):
    time.sleep(0.003)
    gradients = [hvd.allreduce(0.1 * weight) for weight in weights]
    weights = [weight - gradient for weight, gradient in zip(weights, gradients)]
    enough = step % 50 == 49 and os.path.exists(journal) and sys.argv[2] in open(journal).read()
    if step % 50 == 49 and hvd.allreduce(np.array([float(enough)]), op=hvd.Max)[0]:
        break
hvd.shutdown()
"""

# Two models, one after the other: the second one from the first result on, until there is a second result.
CHANGING = """
import os
import sys
import torch
import ringtune.torch as hvd

hvd.init()
torch.set_num_threads(1)
journal = os.path.join(os.environ["RINGTUNE_RUN_DIR"], "tuning", "journal.jsonl")


def results():
    count = open(journal).read().count('"event":"result"') if os.path.exists(journal) else 0
    return hvd.broadcast_object(count, root_rank=0)


def train(width, layers, until):
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters())
    inputs = torch.randn(8, width)
    for step in range(100_000):
        if step % 50 == 49 and results() >= until:
            return
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


train(32, 20, 1)
train(64, 10, 2)
hvd.shutdown()
"""


# How an elastic script begins.
ELASTIC = """
import json
import os
import signal
import sys
import torch
import ringtune.torch as hvd

hvd.init()
torch.set_num_threads(1)
journal = os.path.join(os.environ["RINGTUNE_RUN_DIR"], "tuning", "journal.jsonl")
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(20)))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters())
inputs = torch.randn(8, 32)
"""

# Elastic: a third slot is there from the first result on, and it ends with the result of three ranks.
GROWING = (
    ELASTIC
    + """

def results():
    count = open(journal).read().count('"event":"result"') if os.path.exists(journal) else 0
    return hvd.broadcast_object(count, root_rank=0)


@hvd.elastic.run
def train(state):
    while state.batch < 100_000:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        state.batch += 1
        if state.batch % 50 == 0:
            if results() == hvd.size() - 1:
                if hvd.size() == 3:
                    return
                if hvd.rank() == 0:
                    open(sys.argv[1], "w").write("localhost:3")
            state.commit()


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0))
print("ended with", hvd.size(), flush=True)
hvd.shutdown()
"""
)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(SCRIPT)
    return path


RESULT = '"event":"result"'


def tune(script: Path, run: Path, until: tuple[int, str], *options: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTUNE_", "HOROVOD_"))}
    environ["XDG_CACHE_HOME"] = str(script.parent / "cache")
    program = Path(sys.executable).with_name("ringtune")
    command = [str(program), "tune", "-np", "2", "--run-dir", str(run), "--seed", "1"]
    command += [*options, sys.executable, str(script), str(until[0]), until[1]]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)


def journal(run: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in layout.tuning_journal(run).read_bytes().splitlines()]


@pytest.mark.slow
def test_a_session_from_beginning_to_end(script: Path, tmp_path: Path) -> None:
    one = tmp_path / "one"
    done = tune(
        script, one, (100_000, RESULT), "--max-trials", "6", "--steps-per-trial", "6", "--apply", str(tmp_path / "env")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    start, default, *rest = journal(one)
    assert (start["event"], start["world"], start["stored_trials"]) == ("start", 2, 0)
    assert (default["trial"], default["source"], default["knobs_version"], default["bytes"]) == (
        0,
        "default",
        0,
        84_480,
    )
    result = next((event for event in rest if "decision" in event), rest[-1])
    assert result.get("decision") in ("improved", "keep-default"), f"{rest}\n{done.stdout}"
    trials = [event for event in rest if event["event"] == "trial"]
    # Whether the sampler has its turn depends on what the first trials cost and promise.
    assert "start-point" in {event["source"] for event in trials}
    # Every change is a new version of the knobs, the same on both ranks: the checksums agree.
    versions = [event["knobs_version"] for event in trials if event["source"] != "confirm"]
    assert versions == sorted(set(versions))
    sums = {line.split()[-1] for line in done.stdout.splitlines() if "checksum" in line}
    assert len(sums) == 1
    logs = [orjson.loads(line) for line in layout.step_log(one, 1).read_bytes().splitlines()]
    assert logs[-1]["knobs_version"] == result["knobs_version"]
    assert (tmp_path / "env").read_text().startswith(f"# ringtune tune: {result['decision']}")


@pytest.mark.long
def test_a_training_without_enough_steps_for_a_trial_says_so(script: Path, tmp_path: Path) -> None:
    done = tune(script, tmp_path / "run", (1, RESULT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "training ended in the warm-up phase after 0 of at most 16 trials" in done.stdout


@pytest.mark.long
def test_a_training_that_is_too_short_keeps_what_was_learned(script: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = tune(script, run, (100_000, '"trial":2'), "--max-trials", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert journal(run)[-1]["decision"] == "interrupted"
    assert "training ended in the" in done.stdout
    assert "the trials are kept" in done.stdout


@pytest.mark.slow
def test_steps_of_a_script_without_an_optimizer_are_detected(tmp_path: Path) -> None:
    script, run = tmp_path / "own.py", tmp_path / "run"
    script.write_text(WITHOUT_OPTIMIZER)
    done = tune(script, run, (100_000, RESULT), "--max-trials", "2", "--steps-per-trial", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    default = next(event for event in journal(run) if event["event"] == "trial")
    assert default["bytes"] == (64 * 32 + 64 + 16 * 64 + 16) * 8  # a step is the update of all four
    assert journal(run)[-1]["decision"] in ("improved", "keep-default"), done.stdout


@pytest.mark.long
def test_a_training_that_changes_its_tensors_is_tuned_again(script: Path, tmp_path: Path) -> None:
    script.write_text(CHANGING)
    run = tmp_path / "run"
    done = tune(script, run, (0, ""), "--max-trials", "5", "--steps-per-trial", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    events = journal(run)
    starts = [event for event in events if event["event"] == "start"]
    assert len(starts) == 2 and starts[0]["fingerprint"] != starts[1]["fingerprint"]
    (again,) = [event["message"] for event in events if event["event"] == "note" and "has changed" in event["message"]]
    assert "a step sends 20 operations of 162.5 KiB together, it was tuned for 40 operations of 82.5 KiB" in again
    assert [event["decision"] for event in events if event["event"] == "result"][1:] != []


@pytest.mark.long
def test_an_elastic_job_that_grows_is_tuned_for_its_new_size(script: Path, tmp_path: Path) -> None:
    script.write_text(GROWING)
    run, slots, discovery = tmp_path / "run", tmp_path / "slots", tmp_path / "discover.sh"
    slots.write_text("localhost:2")
    discovery.write_text(f"#!/bin/sh\ncat {slots}\n")
    discovery.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTUNE_", "HOROVOD_"))}
    environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    environ |= {"RINGTUNE_AUTOTUNE_MAX_TRIALS": "4", "RINGTUNE_AUTOTUNE_STEPS_PER_TRIAL": "6"}
    command = [str(Path(sys.executable).with_name("ringtune")), "run", "--autotune", "--run-dir", str(run)]
    command += ["--min-np", "2", "--max-np", "3", "--host-discovery-script", str(discovery)]
    command += [sys.executable, str(script), str(slots)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ended with 3") == 3
    events = [event for event in journal(run) if event["event"] in ("start", "result")]
    assert [(event["event"], event.get("world")) for event in events] == [
        ("start", 2), ("result", None), ("start", 3), ("result", None),
    ]  # fmt: skip
    assert events[0]["fingerprint"] != events[2]["fingerprint"]
    assert {event["decision"] for event in events[1::2]} <= {"improved", "keep-default"}
