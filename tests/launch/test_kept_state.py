"""The committed state on disk: all processes of a job end, and the next start goes on from the last commit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import needs
from tests.launch.conftest import HANG_S, Jobs
from tests.launch.test_strangers import as_stranger
from tests.launch.test_surroundings import RUN, isolated, run_as

needs("ringtune._native")
needs("torch")

TRAIN = """
import os, signal, sys
from pathlib import Path
import torch, ringtune.torch as hvd
hvd.init()
torch.manual_seed(3)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, batch=0)
crashed = Path(sys.argv[1])
@hvd.elastic.run
def train(state):
    begin = state.batch
    while state.batch < 30:
        generator = torch.Generator().manual_seed(1000 * state.batch + hvd.rank())
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
        optimizer.step()
        state.batch += 1
        if state.batch % 10 == 0:
            state.commit()
        if state.batch == 25 and hvd.rank() == 1 and not crashed.exists():
            crashed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return begin
begin = train(state)
digest = sum(float(one.detach().double().sum()) for one in model.parameters())
print(f"rank {hvd.rank()} began at {begin}, ended at {state.batch}: {digest!r}", flush=True)
hvd.shutdown()
"""


SLURM = {
    "SLURM_JOB_ID": str(os.getpid()),
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_NODELIST": "localhost",
}


def told(stdout: str) -> list[str]:
    return sorted(line[line.index("rank ") :] for line in stdout.splitlines() if "began at" in line)


@pytest.fixture
def undisturbed(jobs: Jobs) -> list[str]:
    """What the ranks print that train through."""
    never = jobs.folder / "never"
    never.touch()
    result = jobs.run("-np", "2", "--no-run-dir", sys.executable, script(jobs), str(never))
    assert result.returncode == 0, result.stderr
    return told(result.stdout)


def script(jobs: Jobs) -> str:
    path = jobs.folder / "train.py"
    path.write_text(TRAIN, encoding="utf-8")
    return str(path)


def kept(jobs: Jobs) -> dict[str, str]:
    return {"RINGTUNE_ELASTIC_STATE": str(jobs.folder / "kept")}


@pytest.mark.slow
def test_a_job_that_is_started_again_goes_on_from_its_last_commit(jobs: Jobs, undisturbed: list[str]) -> None:
    command = ("-np", "2", "--no-run-dir", "--restarts", "1", sys.executable, script(jobs), str(jobs.folder / "crash"))
    result = jobs.run(*command, environ=kept(jobs))
    assert result.returncode == 0, result.stderr
    assert told(result.stdout) == [line.replace("began at 0", "began at 20") for line in undisturbed]
    assert "training goes on from commit 2" in result.stderr
    assert list((jobs.folder / "kept").iterdir()) == [], "it ended well: the next one begins anew"


@pytest.mark.long
def test_under_torchrun_too(jobs: Jobs, undisturbed: list[str]) -> None:
    command = [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "--max-restarts",
            "1",
        ),
        *(script(jobs), str(jobs.folder / "crash")),
    ]
    environ = {**os.environ, **kept(jobs), "RINGTUNE_RUN_DIR": str(jobs.folder / "run")}
    result = subprocess.run(
        command, env=environ, cwd=jobs.folder, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert result.returncode == 0, result.stderr
    assert told(result.stdout) == [line.replace("began at 0", "began at 20") for line in undisturbed]


def in_slurm(jobs: Jobs, restart: Mapping[str, str]) -> list[tuple[int, str, str]]:
    """Start two ranks as srun does on one node; return code, output and errors of each."""
    started = [
        subprocess.Popen(
            [sys.executable, script(jobs), str(jobs.folder / "crash")],
            env={**os.environ, **kept(jobs), **SLURM, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, **restart},
            cwd=jobs.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in "01"
    ]
    jobs.started += started
    said = [one.communicate(timeout=HANG_S) for one in started]
    return [
        (one.returncode, stdout.decode(), stderr.decode()) for one, (stdout, stderr) in zip(started, said, strict=True)
    ]


@pytest.mark.slow
def test_under_slurm_that_starts_the_job_again(jobs: Jobs, undisturbed: list[str]) -> None:
    """The job's number stays; tests/engines has a real requeue."""
    first = in_slurm(jobs, {})
    assert all(code for code, _, _ in first), first
    second = in_slurm(jobs, {"SLURM_RESTART_COUNT": "1"})
    assert not any(code for code, _, _ in second), second
    whole = told("".join(stdout for _, stdout, _ in second))
    assert whole == [line.replace("began at 0", "began at 20") for line in undisturbed]


def write_state(jobs: Jobs, content: bytes, mode: int = 0o600) -> Path:
    file = jobs.folder / "kept" / "state"
    file.parent.mkdir(mode=0o700)
    file.write_bytes(content)
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (b"x" * 40, 0o600, "is no state that ringtune kept"),
        (b"RT", 0o600, "is no state that ringtune kept"),
        (b"RTSTATE1" + bytes(8), 0o622, "may have been written by another user"),
    ],
)
def test_what_was_not_kept_by_this_user_is_refused(jobs: Jobs, content: bytes, mode: int, message: str) -> None:
    write_state(jobs, content, mode)
    command = ("-np", "1", "--no-run-dir", sys.executable, script(jobs), str(jobs.folder / "crash"))
    result = jobs.run(*command, environ=kept(jobs))
    assert result.returncode == 1 and message in result.stderr, result.stderr


def test_a_link_or_a_pipe_in_its_place_is_refused(jobs: Jobs) -> None:
    """Who may write in the folder could lead a job to another training's state, or let it wait for a writer."""
    file = write_state(jobs, b"RTSTATE1" + bytes(8))
    command = ("-np", "1", "--no-run-dir", sys.executable, script(jobs), str(jobs.folder / "crash"))
    file.rename(jobs.folder / "other")
    file.symlink_to(jobs.folder / "other")
    linked = jobs.run(*command, environ=kept(jobs))
    assert linked.returncode == 1 and f"{file}: cannot be read" in linked.stderr, linked.stderr
    file.unlink()
    os.mkfifo(file, 0o600)
    waiting = jobs.run(*command, environ=kept(jobs))
    assert waiting.returncode == 1 and "may have been written by another user" in waiting.stderr, waiting.stderr


def test_a_link_of_another_user_is_not_written_through(jobs: Jobs) -> None:
    """The exploit: a folder where a stranger may write too, and there a link to a file of the job's user."""
    never, mine, folder = jobs.folder / "never", jobs.folder / "mine", jobs.folder / "kept"
    never.touch()
    mine.write_text("precious", encoding="utf-8")
    folder.mkdir()
    folder.chmod(0o777)
    at = os.open(folder, os.O_RDONLY)  # pytest lets nobody else into the folders above
    links = as_stranger(lambda: [os.symlink(mine, name, dir_fd=at) for name in ("state.part", "state.0.part")])
    os.close(at)
    assert links == "[None, None]"
    command = ("-np", "1", "--no-run-dir", sys.executable, script(jobs), str(never))
    result = jobs.run(*command, environ=kept(jobs))
    assert result.returncode == 0 and "ended at 30" in result.stdout, result.stderr
    assert "not kept" not in result.stderr
    assert mine.read_text(encoding="utf-8") == "precious"


def test_a_disk_that_is_full_costs_the_kept_state_and_not_the_training(jobs: Jobs) -> None:
    never = jobs.folder / "never"
    never.touch()
    (jobs.folder / "kept").mkdir()
    fill = "mount -t tmpfs -o size=64k tmpfs kept; head -c 100000 /dev/zero >kept/filler 2>/dev/null || true"
    words = [*RUN, "-np", "1", "--no-run-dir", sys.executable, script(jobs), str(never)]
    result = run_as(jobs, isolated("-m", fill, words), environ=kept(jobs))
    assert result.returncode == 0 and "ended at 30" in result.stdout, result.stderr
    assert "commit 1 is not kept in" in result.stderr and "No space left on device" in result.stderr
