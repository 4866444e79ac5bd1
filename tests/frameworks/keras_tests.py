"""The tests of Keras' front ends, the same for every version and backend: a test file binds them to one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frameworks import keras_cases as cases
from tests.jobs.launching import Job, variables

GetJob = Callable[..., Job]


class KerasJobs:
    """Jobs by size whose ranks have imported one front end; kept until a test fails."""

    def __init__(self, folder: Path, front: str, environ: dict[str, str]) -> None:
        self.front, self._folder, self._environ = front, folder, environ
        self._jobs: dict[int, Job] = {}

    def __call__(self, size: int = 2) -> Job:
        if size not in self._jobs:
            folder = self._folder / str(size)
            folder.mkdir()
            job = self._jobs[size] = Job(size, folder, {**variables(size), **self._environ})
            assert job.run(cases.open_session, front=self.front) == [(rank, size) for rank in range(size)]
        return self._jobs[size]

    def run(self, function: Callable[..., Any], size: int = 2, **options: Any) -> list[Any]:
        return self(size).run(function, front=self.front, **options)

    def end(self) -> None:
        for job in self._jobs.values():
            job.__exit__()
        self._jobs.clear()


KILLED = """
import json, os, signal, sys
from pathlib import Path
import keras, numpy as np
import ringtune.keras as hvd

hvd.init()
folder = Path(sys.argv[1])
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.5)), "mse")

class Killed(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        if state.epoch == 2 and batch == 1 and hvd.rank() == 1:
            try:
                (folder / "killed").touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

@hvd.elastic.run
def train(state):
    print("begin", json.dumps([hvd.rank(), hvd.size(), state.epoch]), flush=True)
    kept = hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.CommitStateCallback(state, batches_per_commit=100)
    rows = np.ones((12, 4), "float32")
    when = {"initial_epoch": state.epoch, "epochs": 4}
    model.fit(rows, rows[:, :1], batch_size=4, verbose=0, callbacks=[Killed(), *kept], **when)
    steps, weight = int(model.optimizer.iterations), float(model.get_weights()[0][0, 0])
    print("end", json.dumps([hvd.rank(), state.epoch, steps, weight]), flush=True)

state = hvd.elastic.KerasState(model, epoch=0)
train(state)
"""


def killed_rank_is_replaced(folder: Path, environ: dict[str, str]) -> None:
    """Kill a rank in ``fit``: all go on from the epoch that was committed, optimizer and weights included."""
    (folder / "train.py").write_text(KILLED, encoding="utf-8")
    flags = ["run", "--no-run-dir", "-np", "2", "--min-np", "1"]
    command = [sys.executable, "-m", "ringtune.cli", *flags, sys.executable, "train.py", str(folder)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    begin, end = (
        sorted(json.loads(line.split(f" {word} ")[1]) for line in lines if f" {word} " in line)
        for word in ("begin", "end")
    )
    assert begin == [[0, 2, 0], [0, 2, 2], [1, 2, 0], [1, 2, 2]]
    assert [one[:3] for one in end] == [[0, 4, 12], [1, 4, 12]] and end[0][3] == end[1][3]


class KerasTests:
    """Take the fixture ``keras``, which gives `KerasJobs`."""

    def test_gradients_are_reduced_and_the_optimizer_s_state_is_kept(self, keras: KerasJobs) -> None:
        keras.run(cases.applied)

    @pytest.mark.parametrize("what", ["passes", "local_variables", "values", "callbacks"])
    def test_parts(self, what: str, keras: KerasJobs) -> None:
        keras.run(getattr(cases, what))

    def test_elastic_state_and_callbacks(self, keras: KerasJobs) -> None:
        keras.run(cases.elastic)

    def test_models_are_saved_without_a_trace_and_loaded_wrapped(self, keras: KerasJobs, tmp_path: Path) -> None:
        keras.run(cases.saved, folder=str(tmp_path))

    def test_what_makes_no_sense_is_refused_in_words(self, keras: KerasJobs) -> None:
        expected = {
            "twice": "wrapped already",
            "no optimizer": "an optimizer of Keras",
            "op": "only Average and Sum",
            "passes": "backward_passes_per_step",
            "layers": "tf.keras.layers.Layer",
            "predivide": "gradient_predivide_factor",
            "no path": "set its filepath",
        }
        for said in keras.run(cases.refused):
            for name, words in expected.items():
                assert words in said[name], (name, said[name])

    def test_fit_reaches_the_loss_of_one_process(self, keras: KerasJobs) -> None:
        [alone] = keras.run(cases.digits, size=1)
        assert alone[-1] < alone[0] / 2
        for size in (2, 3):
            for losses in keras.run(cases.digits, size=size):
                np.testing.assert_allclose(losses, alone, rtol=2e-3)


class Keras3Tests(KerasTests):
    """What only Keras 3 has."""

    def test_horovod_s_way_of_wrapping_reduces_nothing(self, keras: KerasJobs) -> None:
        """Keras 3 accepts it, and the ranks part: the test catches a wrapping that is not called."""
        found = keras.run(cases.wrapped_as_horovod_does)
        assert [theirs for theirs, _ in found] == [-1.0, -2.0]
        assert [ours for _, ours in found] == [-1.5, -1.5]

    @pytest.mark.parametrize("outer", [True, False], ids=["given", "made by Keras"])
    def test_ranks_agree_on_whether_gradients_are_finite(self, outer: bool, keras: KerasJobs) -> None:
        keras.run(cases.finite, outer=outer)
