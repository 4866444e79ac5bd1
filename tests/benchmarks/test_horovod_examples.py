"""The examples in Horovod's style, under both names: untouched with --as-horovod, and with their one import changed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
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


# What is tried under each name: script and options. A job of two ranks runs all of them one after the other, for it
# takes its ranks longer to import torch and scikit-learn than to train.
RUNS = {
    "horovod": [
        ("mnist.py", ()), ("mnist.py", ("--fp16-allreduce",)), ("mnist.py", ("--use-adasum",)),
        ("synthetic_benchmark.py", ()), ("elastic.py", ()),
    ],
    "ringtune": [
        ("mnist.py", ()), ("mnist.py", ("--gradient-predivide-factor", "2")), ("synthetic_benchmark.py", ()),
        ("elastic.py", ()),
    ],
}  # fmt: skip

# Every run begins with a line of its own on rank 0, and ends its session.
ONE_AFTER_THE_OTHER = """
import json, os, runpy, sys
name, runs = sys.argv[1], json.loads(sys.argv[2])
for script, *words in runs:
    if os.environ["RINGTUNE_RANK"] == "0":
        print("=== run", flush=True)
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")
    sys.modules[name + ".torch"].shutdown()
"""


def put_examples(folder: Path, name: str) -> None:
    """Put the examples into a folder under one of their names."""
    for script in FEW:
        source = (EXAMPLES / script).read_text()
        assert source.count(IMPORT) == 1
        if name == "ringtune":
            source = source.replace(IMPORT, "import ringtune.torch as hvd")
        (folder / script).write_text(source)


def on_two_ranks(folder: Path, name: str, words: Sequence[str], flags: Sequence[str] = ()) -> str:
    """Run a program on two ranks and return what it printed."""
    alias = ["--as-horovod"] if name == "horovod" else []
    command = ringtune_command("run", "-np", "2", "--no-run-dir", "--no-prefix", *flags, *alias)
    return succeed([*command, sys.executable, *words], folder)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that gives what a run of `RUNS` printed."""

    @cache
    def everything(name: str) -> list[str]:
        folder = tmp_path_factory.mktemp(name)
        put_examples(folder, name)
        (folder / "all.py").write_text(ONE_AFTER_THE_OTHER)
        runs = json.dumps([[script, *FEW[script], *words] for script, words in RUNS[name]])
        return on_two_ranks(folder, name, ["all.py", name, runs]).split("=== run\n")[1:]

    return lambda name, script, words=(): everything(name)[RUNS[name].index((script, words))]


def runs_of(script: str) -> pytest.MarkDecorator:
    """Parametrise by the names under which a script runs, and its options; with its import changed it is long."""
    marks = {"horovod": pytest.mark.slow, "ringtune": pytest.mark.long}
    found = [
        pytest.param(name, words, marks=marks[name])
        for name, runs in RUNS.items()
        for other, words in runs
        if other == script
    ]
    return pytest.mark.parametrize(("name", "words"), found)


@runs_of("mnist.py")
def test_mnist(name: str, words: tuple[str, ...], printed: Callable[..., str]) -> None:
    accuracy = re.search(r"Accuracy: (.*)%", printed(name, "mnist.py", words))
    assert accuracy is not None
    assert float(accuracy[1]) > 85


@runs_of("synthetic_benchmark.py")
def test_synthetic_benchmark(name: str, words: tuple[str, ...], printed: Callable[..., str]) -> None:
    assert "Total img/sec on 2 CPU(s): " in printed(name, "synthetic_benchmark.py", words)


def check_elastic(text: str) -> None:
    lines = re.findall(r"epoch (\d), ranks (\d), accuracy (.*)", text)
    assert [(epoch, ranks) for epoch, ranks, _ in lines] == [("1", "2"), ("2", "2"), ("3", "2")]
    assert float(lines[-1][2]) > 0.85


@runs_of("elastic.py")
def test_elastic(name: str, words: tuple[str, ...], printed: Callable[..., str]) -> None:
    check_elastic(printed(name, "elastic.py", words))


@pytest.mark.long
def test_elastic_under_the_elastic_launcher(tmp_path: Path) -> None:
    put_examples(tmp_path, "horovod")
    check_elastic(on_two_ranks(tmp_path, "horovod", ["elastic.py", *FEW["elastic.py"]], ["--min-np", "1"]))


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


@pytest.mark.long
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
