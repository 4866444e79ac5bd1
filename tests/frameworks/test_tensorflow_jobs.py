"""Jobs of TensorFlow as users start them: timelines, lost ranks, elastic training."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="make test-frameworks runs this where TensorFlow is installed")

from tests import pages
from tests.frameworks import tensorflow_elastic_cases as cases
from tests.frameworks.bench import check_bench
from tests.jobs.launching import Job
from tests.launch.conftest import Jobs as LaunchedJobs

FRONT = "tensorflow"
GetJob = Callable[..., Job]
HANG_S = 200.0  # a bound on hangs

TRAIN = """
import json, os, signal, sys
from pathlib import Path
import tensorflow as tf
import ringtune.tensorflow as hvd

hvd.init()
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.5)
optimizer.build(model.trainable_variables)
folder, batches = Path(sys.argv[1]), int(sys.argv[2])

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x))
    grads = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))

def once(name):
    try:
        (folder / name).touch(exist_ok=False)
        return True
    except FileExistsError:
        return False

@hvd.elastic.run
def train(state):
    print("begin", json.dumps([hvd.rank(), hvd.size(), state.batch, int(optimizer.iterations)]), flush=True)
    while state.batch < batches:
        if state.batch == 8 and hvd.rank() == 1 and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        step(tf.fill((2, 4), float(state.batch)))
        state.batch += 1
        if state.batch % 5 == 0:
            state.commit()
    same = hvd.allgather(model.get_weights()[0].reshape(1, -1)).numpy()
    assert (same == same[:1]).all()
    print("end", json.dumps([hvd.rank(), hvd.size(), state.batch, int(optimizer.iterations)]), flush=True)

train(hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0))
"""


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[LaunchedJobs]:
    """Return what runs `ringtune run`; a launcher that still runs at the end is killed."""
    made = LaunchedJobs(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_killed_rank_is_replaced_and_training_goes_on_from_the_commit(launched: LaunchedJobs) -> None:
    script = launched.folder / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    flags = ("--no-run-dir", "-np", "2", "--min-np", "1")
    result = launched.run(*flags, sys.executable, str(script), str(launched.folder), "12")
    said = {
        word: [json.loads(line.split(f"{word} ")[1]) for line in result.stdout.splitlines() if f" {word} " in line]
        for word in ("begin", "end")
    }
    assert result.returncode == 0, result.stderr
    assert sorted(said["begin"][:2]) == [[0, 2, 0, 0], [1, 2, 0, 0]]
    assert sorted(said["begin"][2:]) == [[0, 2, 5, 5], [1, 2, 5, 5]]
    assert sorted(said["end"]) == [[0, 2, 12, 12], [1, 2, 12, 12]]


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
def test_a_lost_rank_is_an_unknown_error_that_says_so(traced: bool, fresh: GetJob) -> None:
    there = fresh(2)
    there.start(cases.reduce_until_it_fails, traced=traced)
    there.ranks[0].line_with("reducing")
    there.ranks[1].line_with("reducing")
    there.ranks[1].signal(signal.SIGKILL)
    kind, text, ours = there.ranks[0].answer()[0]
    assert kind == "UnknownError" and "rank 1" in text and ours == "PeerLost"


def test_errors_in_elastic_training(job: GetJob) -> None:
    """Failures of the runtime are met with a new try, whichever op told of them; all others are raised."""
    for said in job().run(cases.elastic_errors):
        assert said == {
            "UnknownError of an alltoall": "a new try",
            "FailedPreconditionError": "a new try",
            "AbortedError": "a new try",
            "UnknownError of another": "UnknownError",
            "ValueError": "ValueError",
        }


def test_states_are_saved_restored_and_synchronised(job: GetJob) -> None:
    job().run(cases.states)


def test_a_new_worker_needs_nobody_to_make_a_state(fresh: GetJob) -> None:
    there = fresh(2)
    there.ranks[1].send(cases.make_a_state, {})  # the other rank makes none
    assert there.ranks[1].answer() == (True,)
    there.ranks[0].send(cases.make_a_state, {})
    assert there.ranks[0].answer() == (True,)


@pytest.mark.slow
def test_a_timeline_has_names_and_steps(tmp_path: Path, launched: LaunchedJobs) -> None:
    """Of a loop with a tape that nobody marks: 6 steps, in each the two gradients by the names of their variables."""
    script = tmp_path / "loop.py"
    script.write_text(
        "import tensorflow as tf\nimport ringtune.tensorflow as hvd\n"
        "from tests.frameworks.tensorflow_training_cases import loop\nhvd.init()\nloop(steps=6)\n",
        encoding="utf-8",
    )
    trace = tmp_path / "trace.json"
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = launched.run("-np", "2", "--timeline", str(trace), sys.executable, str(script), environ=environ)
    assert result.returncode == 0, result.stderr
    text = trace.read_text()
    assert "allreduce.gradient.step/1/0.Variable" in text and "allreduce.gradient.step/1/1.Variable" in text
    said = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", "timeline", "summary", str(trace), "--json"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    summary = json.loads(said.stdout)
    # The first ones, in which TensorFlow compiles, are told apart as the start-up.
    steps, startup = summary["steps"], summary["startup"]
    assert startup["first"] == 0 and steps["last"] == 5 and steps["count"] == 5 - startup["last"], (steps, startup)
    assert summary["headline"]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["loop(steps=120)", "fit_batches(120)"])
def test_the_tuner_sees_every_step(call: str, launched: LaunchedJobs) -> None:
    """Of a loop with a tape and of ``fit``, without a mark by the user; the search turns the knobs meanwhile."""
    script = launched.folder / "tuned.py"
    script.write_text(
        "import ringtune.tensorflow as hvd\nfrom ringtune import session\n"
        "from tests.frameworks.tensorflow_training_cases import fit_batches, loop\n"
        f"hvd.init()\n{call}\nprint('knobs', session.state.current.knobs_version)\n",
        encoding="utf-8",
    )
    environ = {"PYTHONPATH": str(Path(__file__).parents[2]), "RINGTUNE_AUTOTUNE": "1"}
    result = launched.run("-np", "2", "--no-prefix", sys.executable, str(script), environ=environ)
    assert result.returncode == 0, result.stderr
    versions = [int(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("knobs ")]
    assert len(versions) == 2 and min(versions) > 0
    [steps] = launched.folder.glob("runs/*/steps/rank-00000.jsonl")
    assert [json.loads(line)["step"] for line in steps.read_text().splitlines()] == list(range(120))


@pytest.mark.slow
def test_blocks_of_the_guide_run(tmp_path: Path) -> None:
    """Its scripts find the weights they are made for; its commands run in order."""
    page = pages.read(pages.GUIDE / "tensorflow.md")
    environ = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for block in page.blocks():
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            for line in block.text.strip().split("\n"):
                command = [sys.executable, "-m", "ringtune.cli", *shlex.split(line)[1:]]
                done = subprocess.run(
                    command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=HANG_S, check=False
                )
                assert line.startswith("ringtune ") and done.returncode == 0, done.stderr
                if line.startswith("ringtune run"):
                    found = re.search(r"loss ([0-9.]+) on 2 ranks", done.stdout)
                    assert found and float(found[1]) < 1, done.stdout


HOROVOD = """
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as khvd
import horovod.keras
from horovod.tensorflow.keras.callbacks import MetricAverageCallback
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Average, rank
import ringtune.tensorflow
import tensorflow as tf
hvd.init()
assert hvd is ringtune.tensorflow and HorovodInternalError is hvd.HorovodInternalError
assert khvd.callbacks.MetricAverageCallback is MetricAverageCallback and khvd.rank() == hvd.rank()
print(hvd.size(), hvd.allreduce(tf.ones(1), op=hvd.Sum).numpy().item())
"""


@pytest.mark.slow
def test_scripts_for_horovod_run_untouched(launched: LaunchedJobs) -> None:
    result = launched.run_script(2, HOROVOD, "--as-horovod", "--no-prefix")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["2 2.0"] * 2


@pytest.mark.slow
def test_bench_frameworks(tmp_path: Path) -> None:
    check_bench("tensorflow", tmp_path)
