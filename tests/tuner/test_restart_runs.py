"""Runs of real jobs for `ringtune tune --restarts`; the ranks write step logs and import nothing of ringtune."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from ringtune import layout, runfolder
from ringtune.errors import UsageError
from ringtune.launch import LaunchOptions, launch
from ringtune.tuner import cli
from ringtune.tuner.advice import Workload
from ringtune.tuner.messages import script_lines
from ringtune.tuner.restarts import command
from ringtune.tuner.restarts.choices import AS_IT_IS, Setting
from ringtune.tuner.restarts.runner import JobRunner, RunnerOptions
from ringtune.tuner.restarts.session import Run
from ringtune.tuner.restarts.steps import StepTimes
from tests.tuner.test_restarts import FakeRunner

# Each rank logs the steps that the variable says, rank 1 slower ones, and stays until it is ended where it may.
SCRIPT = """
import json, os, sys, time
rank = int(os.environ["RINGTUNE_RANK"])
assert os.environ["RINGTUNE_AUTOTUNE"] == "0"
if os.environ.get("FAIL") == str(rank):
    sys.exit("told to fail")
folder = os.path.join(os.environ["RINGTUNE_RUN_DIR"], "steps")
os.makedirs(folder, exist_ok=True)
length = int(os.environ.get("LENGTH", "10")) + rank
with open(os.path.join(folder, f"rank-{rank:05}.jsonl"), "w") as log:
    for step in range(int(os.environ.get("STEPS", "40"))):
        line = {"step": step, "begin_ns": 0, "end_ns": length * 10**6, "bytes": 64, "collectives": 2}
        log.write(json.dumps(line) + chr(10))
        log.flush()
if rank == 1:
    with open(os.path.join(folder, "nccl"), "w") as said:
        said.write(" ".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if name[:5] == "NCCL_"))
if os.environ.get("STAY", "1") == "1":
    time.sleep(300)
"""

Runs = Callable[..., Run]


@pytest.fixture
def job(tmp_path: Path) -> LaunchOptions:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return LaunchOptions([sys.executable, "-S", str(script)], num_proc=2, run_dir=tmp_path / "run")


def setting(**variables: str) -> Setting:
    return tuple(sorted(variables.items()))


def test_a_run_ends_when_it_has_shown_enough(job: LaunchOptions) -> None:
    run = JobRunner(job, RunnerOptions((0, 1), warmup_steps=5, steps=20)).run(AS_IT_IS, lambda times: False)
    assert (run.times, run.failure, run.workload) == ((11_000_000,) * 20, "", Workload(2, 64))


def test_the_ranks_have_the_variables_of_a_setting(job: LaunchOptions) -> None:
    runner = JobRunner(job, RunnerOptions((0, 1), warmup_steps=5, steps=1000))
    runner.run(setting(NCCL_ALGO="Tree", NCCL_PROTO="LL", STAY="0"), lambda times: False)
    assert job.run_dir is not None
    (said,) = job.run_dir.glob("tuning/run-*/steps/nccl")
    assert said.read_text() == "NCCL_ALGO=Tree NCCL_PROTO=LL"


def test_a_run_that_is_worse_is_left(job: LaunchOptions) -> None:
    seen: list[int] = []

    def leave(times: Any) -> bool:
        seen.append(len(times))
        return len(times) == 4

    run = JobRunner(job, RunnerOptions((0, 1), warmup_steps=5, steps=1000)).run(setting(LENGTH="30"), leave)
    assert run.failure == "" and set(run.times) == {31_000_000} and seen == [1, 2, 3, 4]


def test_a_run_may_end_by_itself(job: LaunchOptions) -> None:
    runner = JobRunner(job, RunnerOptions((0, 1), warmup_steps=5, steps=1000))
    assert len(runner.run(setting(STAY="0"), lambda times: False).times) == 35
    short = runner.run(setting(STAY="0", STEPS="6"), lambda times: False)
    assert short.failure.startswith("1 training steps were counted after 5 steps of warm-up, at least 3 are needed")


def test_a_run_that_fails_says_which_rank_and_its_last_words(job: LaunchOptions) -> None:
    run = JobRunner(job, RunnerOptions((0, 1))).run(setting(FAIL="1", STEPS="0"), lambda times: False)
    assert run.failure.startswith("rank 1 on localhost exited with code 1, ")
    assert run.failure.endswith("after the start: told to fail")


def test_a_run_that_makes_no_step_has_its_time(job: LaunchOptions) -> None:
    run = JobRunner(job, RunnerOptions((0, 1), limit_s=0.2)).run(setting(STEPS="0"), lambda times: False)
    assert run.failure == "no end after 0 s, 0 steps counted" and run.wall_s < 60


def test_a_setting_that_is_refused_is_a_failed_run(job: LaunchOptions) -> None:
    run = JobRunner(job, RunnerOptions((0, 1))).run(setting(RINGTUNE_SOCKETS_PER_PEER="many"), lambda times: False)
    assert "RINGTUNE_SOCKETS_PER_PEER='many'" in run.failure


def test_a_job_in_a_thread_is_ended_by_its_descriptor(tmp_path: Path) -> None:
    """Either by what can be read there or by its end; nothing is printed when the caller wants the words."""
    end, begin = os.pipe()
    said: list[str] = []
    code: list[int] = []
    lines: list[str] = []
    started = threading.Event()

    def line(rank: int, stream: str, text: str) -> None:
        lines.append(text)
        started.set()

    options = LaunchOptions(
        [sys.executable, "-S", "-c", "print('here', flush=True); import time; time.sleep(300)"],
        num_proc=1, echo=False, on_line=line, on_say=said.append, stop_fd=end,
    )  # fmt: skip
    thread = threading.Thread(target=lambda: code.append(launch(options)))
    thread.start()
    assert started.wait(60)
    os.close(begin)
    thread.join(60)
    os.close(end)
    assert code == [143] and lines == ["here"] and "SIGTERM passed on to 1 ranks" in said


def test_step_times_are_those_of_the_slowest_rank_and_whole_lines(tmp_path: Path) -> None:
    steps = StepTimes(tmp_path, (0, 2), warmup_steps=1)
    assert steps.read() == [] and steps.workload == Workload(0, 0)

    def log(rank: int, *lengths: int, torn: bytes = b"") -> None:
        path = layout.step_log(tmp_path, rank)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            for length in lengths:
                file.write(orjson.dumps({"begin_ns": 5, "end_ns": 5 + length}) + b"\n")
            file.write(torn)

    log(0, 1, 10, 20, 30, torn=b'{"begin_ns": 5')
    log(2, 1, 15, 12)
    assert steps.read() == [15, 20]
    log(2, 31)
    assert steps.read() == [15, 20, 31]


# -- the command ----------------------------------------------------------------------------------------------------

FOUR = setting(RINGTUNE_SOCKETS_PER_PEER="4")
TREE = setting(NCCL_ALGO="Tree")


def tune(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner, *options: str) -> Any:
    monkeypatch.setattr(command, "JobRunner", lambda job, runs: runner)
    monkeypatch.setenv("RINGTUNE_TRANSPORT", "tcp")
    words = ["-np", "2", "--restarts", *options, "python", "train.py"]
    return CliRunner().invoke(cli.tune, words, standalone_mode=False)


def test_the_command_shows_keeps_and_writes_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ["--run-dir", str(tmp_path / "run"), "--apply", str(tmp_path / "env"), "--budget", "1min"]
    done = tune(monkeypatch, FakeRunner({FOUR: 8e6}), *options)
    assert done.return_value == 0, done.output
    assert "trial 1 (switch): RINGTUNE_SOCKETS_PER_PEER=4: 8.00 ms a step, gain 20.0 %" in done.output
    assert "improved: RINGTUNE_SOCKETS_PER_PEER=4; confirmed beside the command as it is: 20.0 %" in done.output
    assert (tmp_path / "env").read_text().splitlines()[1:] == ["RINGTUNE_SOCKETS_PER_PEER=4"]
    events = [orjson.loads(line) for line in layout.tuning_journal(tmp_path / "run").read_bytes().splitlines()]
    kinds = [event["event"] for event in events if event["event"] != "progress"]
    assert kinds == ["start"] + ["trial"] * (len(kinds) - 2) + ["result"]
    assert [event for event in events if event["event"] == "trial"][1]["settings"] == {"RINGTUNE_SOCKETS_PER_PEER": "4"}
    assert layout.tuning_study(tmp_path / "run").is_file()
    described = runfolder.read(tmp_path / "run")
    assert described is not None and (described["status"], described["name"]) == ("finished", "train")
    assert (described["command"], described["size"]) == (["python", "train.py"], 2)
    assert described["labels"] == {"tuning": "restarts"} and described["config"] == {"RINGTUNE_TRANSPORT": "tcp"}
    again = tune(monkeypatch, FakeRunner({FOUR: 8e6}), "--run-dir", str(tmp_path / "again"))
    assert "the stored result still holds" in again.output


def test_a_session_as_one_document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = {"RINGTUNE_BUCKET_CAP_MB": "10"}
    done = tune(monkeypatch, FakeRunner({FOUR: 8e6}, made=made), "--run-dir", str(tmp_path / "run"), "--json")
    document = orjson.loads(done.stdout)
    assert document["result"]["settings"] == {"RINGTUNE_SOCKETS_PER_PEER": "4"} and document["result"]["made"] == made
    assert document["keep"] == ["RINGTUNE_SOCKETS_PER_PEER=4"] and document["exit_code"] == 0
    kinds = [record["event"] for record in document["records"] if record["event"] != "progress"]
    assert kinds == ["start"] + ["trial"] * (len(kinds) - 2) + ["result"]
    assert "trial 1 (switch)" in done.stderr


def test_variables_of_nccl_are_tried_on_a_host_with_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command.Gpus, "find", lambda: object())
    done = tune(monkeypatch, FakeRunner({TREE: 8e6}), "--run-dir", str(tmp_path / "run"), "--max-trials", "40")
    assert done.return_value == 0 and "improved: NCCL_ALGO=Tree" in done.output, done.output


def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = tune(monkeypatch, FakeRunner({}, interrupt_at=2), "--run-dir", str(tmp_path / "run"))
    assert done.return_value == 130 and "interrupted after 2 runs" in done.output
    described = runfolder.read(tmp_path / "run")
    assert described is not None and (described["status"], described["exit_code"]) == ("failed", 130)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget", "2%"], "--budget 2%: with --restarts it is the time of all runs"),
        (["--horizon", "1"], "--horizon is for tuning within one training"),
        (["--try", "x"], "--try x: expected NAME=VALUE"),
        (["--try", "sockets=1"], "no variable sockets; did you mean RINGTUNE_SOCKETS_PER_PEER?"),
    ],
)
def test_wrong_options_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], said: str) -> None:
    done = tune(monkeypatch, FakeRunner({}), *options)
    assert isinstance(done.exception, UsageError) and said in str(done.exception)


def test_options_of_restarts_alone_are_told() -> None:
    done = CliRunner().invoke(
        cli.tune, ["-np", "2", "--allow-compression", "python", "train.py"], standalone_mode=False
    )
    assert isinstance(done.exception, UsageError) and str(done.exception) == "--allow-compression is for --restarts"


PLAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
# Each layer is 1 MiB and more, the size of a bucket.
layers = [torch.nn.Linear(512, 512) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    model(torch.ones(4, 512)).sum().backward()
    assert (optimizer.param_groups[0]["params"][0].grad._base is not None) == model.gradient_as_bucket_view
    optimizer.step()
"""


def runner_of(script: str, folder: Path) -> JobRunner:
    (folder / "plain.py").write_text(script)
    job = LaunchOptions([sys.executable, str(folder / "plain.py")], num_proc=2, run_dir=folder / "run")
    return JobRunner(job, RunnerOptions((0, 1), warmup_steps=3, steps=5))


@pytest.mark.slow
def test_a_plain_job_of_ddps_is_tuned_from_outside(tmp_path: Path) -> None:
    runner = runner_of(PLAIN, tmp_path)
    first = runner.run(AS_IT_IS, lambda times: False)
    assert (first.failure, len(first.times), first.backend) == ("", 5, "cpu:gloo,cuda:gloo")
    assert first.made == {
        "RINGTUNE_BUCKET_CAP_MB": "1",
        "RINGTUNE_DDP_FIRST_BUCKET_MB": "1",
        "RINGTUNE_DDP_BUCKET_VIEW": "0",
        "RINGTUNE_DDP_STATIC_GRAPH": "0",
    }
    assert first.workload.collectives == 4
    other = runner.run(setting(RINGTUNE_BUCKET_CAP_MB="100", RINGTUNE_DDP_BUCKET_VIEW="1"), lambda times: False)
    assert (other.failure, other.workload) == ("", Workload(1, first.workload.bytes))
    split = setting(RINGTUNE_BUCKET_CAP_MB="100", RINGTUNE_DDP_FIRST_BUCKET_MB="0.5")
    two = runner.run(split, lambda times: False)
    assert (two.failure, two.workload) == ("", Workload(2, first.workload.bytes))


FSDP = """
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

loader = DataLoader(TensorDataset(torch.randn(64, 32)), batch_size=8, num_workers=1, persistent_workers=True)
assert len(list(DataLoader(Stream(), num_workers=1))) == 3, "each worker gives all of a stream"
dist.init_process_group("gloo")
layers = [torch.nn.Linear(32, 32) for _ in range(3)]
model = torch.nn.Sequential(*layers)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (batch,) in loader:
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
if "RINGTUNE_FSDP_PREFETCH" in os.environ:
    assert loader.num_workers == 0 and not loader.persistent_workers
    ahead = [layer._get_fsdp_state()._states_to_forward_prefetch for layer in (model, *layers)]
    states = [layer._get_fsdp_state() for layer in layers]
    assert ahead == [states[:2], states[1:], states[2:], []], ahead
    assert [layer._get_fsdp_state()._states_to_backward_prefetch for layer in layers] == [
        [], states[:1], [states[1], states[0]]
    ]
"""


@pytest.mark.long
def test_a_job_of_fsdp2_and_its_loader_are_tuned_from_outside(tmp_path: Path) -> None:
    runner = runner_of(FSDP, tmp_path)
    first = runner.run(AS_IT_IS, lambda times: False)
    assert (first.failure, len(first.times)) == ("", 5)
    assert first.made == {
        "RINGTUNE_FSDP_RESHARD": "",
        "RINGTUNE_FSDP_PREFETCH": "0",
        "RINGTUNE_LOADER_WORKERS": "1",
    }
    tried = {"RINGTUNE_FSDP_RESHARD": "0", "RINGTUNE_FSDP_PREFETCH": "2", "RINGTUNE_LOADER_WORKERS": "0"}
    other = runner.run(setting(**tried), lambda times: False)
    assert (other.failure, len(other.times)) == ("", 5)
    assert other.workload.collectives < first.workload.collectives, "parameters are gathered once a step, not twice"


def test_the_result_is_a_line_of_the_script_too() -> None:
    settings = {"RINGTUNE_BUCKET_CAP_MB": "50", "RINGTUNE_DDP_BUCKET_VIEW": "1", "OMP_NUM_THREADS": "1"}
    assert script_lines(settings) == ["DistributedDataParallel(model, bucket_cap_mb=50, gradient_as_bucket_view=True)"]
    assert script_lines({"OMP_NUM_THREADS": "1"}) == []
    settings = {"RINGTUNE_DDP_BUCKET_VIEW": "1", "RINGTUNE_DDP_FIRST_BUCKET_MB": "0.25"}
    assert script_lines(settings) == [
        "DistributedDataParallel(model, bucket_cap_mb_list=[0.25, 25], gradient_as_bucket_view=True)"
    ]
    assert script_lines({"RINGTUNE_BUCKET_CAP_MB": "50", "RINGTUNE_DDP_FIRST_BUCKET_MB": "4"}) == [
        "DistributedDataParallel(model, bucket_cap_mb_list=[4, 50])"
    ]
    made = {"RINGTUNE_BUCKET_CAP_MB": "10", "RINGTUNE_DDP_FIRST_BUCKET_MB": "10", "RINGTUNE_DDP_BUCKET_VIEW": "0"}
    first = {"RINGTUNE_DDP_FIRST_BUCKET_MB": "4"}
    for given, others in ((first, "10"), ({**first, "RINGTUNE_BUCKET_CAP_MB": "50"}, "50")):
        assert script_lines(given, made) == [f"DistributedDataParallel(model, bucket_cap_mb_list=[4, {others}])"]
    settings = {"RINGTUNE_FSDP_RESHARD": "0", "RINGTUNE_FSDP_PREFETCH": "2", "RINGTUNE_LOADER_WORKERS": "4"}
    assert script_lines(settings) == [
        "fully_shard(module, reshard_after_forward=False)",
        "DataLoader(dataset, num_workers=4)",
        "layers[i].set_modules_to_forward_prefetch(layers[i + 1 :][:2])",
        "layers[i].set_modules_to_backward_prefetch(layers[:i][::-1][:2])",
    ]
