"""The examples in Horovod's style, under both names: untouched with --as-horovod, and with their one import changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import ringtune.benchmarks
from tests.benchmarks.test_jobs import ringtune_command, succeed

EXAMPLES = Path(ringtune.benchmarks.__file__).parent / "examples" / "horovod_style"
IMPORT = "import horovod.torch as hvd"
FEW = {
    "mnist.py": ["--epochs", "8"],
    "synthetic_benchmark.py": [
        "--model", "resnet18", "--batch-size", "2", "--image-size", "32", "--num-warmup-batches", "1",
        "--num-batches-per-iter", "1", "--num-iters", "2",
    ],
    "elastic.py": ["--epochs", "3"],
}  # fmt: skip


def run_example(folder: Path, name: str, script: str, words: Sequence[str] = (), flags: Sequence[str] = ()) -> str:
    """Run an example on two ranks under one of its names and return what it printed."""
    source = (EXAMPLES / script).read_text()
    assert source.count(IMPORT) == 1
    if name == "horovod":
        flags = [*flags, "--as-horovod"]
    else:
        source = source.replace(IMPORT, "import ringtune.torch as hvd")
    (folder / script).write_text(source)
    command = ringtune_command("run", "-np", "2", "--no-run-dir", "--no-prefix", *flags)
    return succeed([*command, sys.executable, script, *FEW[script], *words], folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("horovod", ()),
        ("ringtune", ()),
        ("horovod", ("--fp16-allreduce",)),
        ("horovod", ("--use-adasum",)),
        ("ringtune", ("--gradient-predivide-factor", "2")),
    ],
)
def test_mnist(name: str, words: Sequence[str], tmp_path: Path) -> None:
    accuracy = re.search(r"Accuracy: (.*)%", run_example(tmp_path, name, "mnist.py", words))
    assert accuracy is not None
    assert float(accuracy[1]) > 85


@pytest.mark.parametrize("name", ["horovod", "ringtune"])
def test_synthetic_benchmark(name: str, tmp_path: Path) -> None:
    assert "Total img/sec on 2 CPU(s): " in run_example(tmp_path, name, "synthetic_benchmark.py")


@pytest.mark.parametrize(("name", "flags"), [("horovod", ()), ("ringtune", ()), ("horovod", ("--min-np", "1"))])
def test_elastic(name: str, flags: Sequence[str], tmp_path: Path) -> None:
    lines = re.findall(r"epoch (\d), ranks (\d), accuracy (.*)", run_example(tmp_path, name, "elastic.py", flags=flags))
    assert [(epoch, ranks) for epoch, ranks, _ in lines] == [("1", "2"), ("2", "2"), ("3", "2")]
    assert float(lines[-1][2]) > 0.85


# The whole example takes a second: a test that killed from outside might come when it is over, or between the commit
# and the line of an epoch. Of the commits that find epoch 5 done the second is in the midst of the next.
MORTAL = """
import os, runpy, signal, sys
import horovod.torch as hvd
commit, seen = hvd.elastic.TorchState.commit, []
def commit_or_die(state):
    seen.append(state.epoch)
    if seen.count(5) == 2 and os.environ["RINGTUNE_WORKER"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    commit(state)
hvd.elastic.TorchState.commit = commit_or_die
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_elastic_goes_on_when_a_rank_is_killed(tmp_path: Path) -> None:
    """Worker 1 is killed while the example trains: every epoch is done once, and the result is right."""
    (tmp_path / "mortal.py").write_text(MORTAL)
    flags = ["-np", "2", "--min-np", "1", "--no-run-dir", "--no-prefix", "--as-horovod"]
    script = [str(tmp_path / "mortal.py"), str(EXAMPLES / "elastic.py"), "--epochs", "25"]
    job = subprocess.run(
        ringtune_command("run", *flags, sys.executable, *script),
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    lines = re.findall(r"epoch (\d+), ranks (\d), accuracy (.*)", job.stdout)
    assert job.returncode == 0, job.stderr
    assert [int(epoch) for epoch, _, _ in lines] == list(range(1, 26))
    assert "was killed by SIGKILL" in job.stderr and "generation 2" in job.stderr
    assert float(lines[-1][2]) > 0.95
