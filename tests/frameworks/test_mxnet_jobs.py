"""Whole jobs with MXNet, as users start them: Horovod's scripts, timeline, elastic jobs, the guide."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mxnet", reason="MXNet is not installed; `make test-frameworks` makes an environment with it")

from tests import pages
from tests.frameworks.bench import check_bench

pytestmark = pytest.mark.slow

FRONT = "mxnet"
HANG_S = 200.0  # a bound on hangs


def ringtune(folder: Path, *arguments: str, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTUNE_", "HOROVOD_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", *arguments],
        cwd=folder, env={**kept, "XDG_CACHE_HOME": str(folder / "cache"), "PATH": path, **variables},
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


HOROVOD = """
import horovod.mxnet as hvd
from horovod.mxnet.mpi_ops import Average, allreduce, rank, size
from horovod.mxnet.compression import Compression
from horovod.common.exceptions import HorovodInternalError
import mxnet as mx
import ringtune.mxnet
hvd.init()
assert hvd is ringtune.mxnet and HorovodInternalError is hvd.HorovodInternalError and size() == hvd.size()
print(hvd.size(), allreduce(mx.nd.ones((1,)), op=hvd.Sum).asscalar())
"""


def test_scripts_for_horovod_run_untouched(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HOROVOD, encoding="utf-8")
    flags = "run", "-np", "2", "--no-run-dir", "--no-prefix", "--as-horovod"
    assert ringtune(tmp_path, *flags, sys.executable, "script.py").splitlines() == ["2 2.0"] * 2


FAILS = """
import mxnet as mx
import ringtune.mxnet as hvd
hvd.init()
try:
    hvd.allreduce(mx.nd.ones((1 + hvd.rank(),)), name="bad").asnumpy()
except mx.base.MXNetError as error:
    print(error)
print(hvd.allreduce(mx.nd.ones((2, 2)), op=hvd.Sum).asnumpy().sum())
"""


def test_errors_are_told_by_the_engine_for_debugging_too(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FAILS, encoding="utf-8")
    flags = "run", "-np", "2", "--no-run-dir", "--no-prefix"
    said = ringtune(tmp_path, *flags, sys.executable, "script.py", MXNET_ENGINE_TYPE="NaiveEngine")
    assert said.count("ringtune.Mismatch: Mismatched ALLREDUCE tensor shapes") == 2 and said.count("8.0") == 2


TRAIN = """
import json, os, signal, sys
from pathlib import Path
import mxnet as mx
from mxnet import autograd, gluon
import ringtune.mxnet as hvd

hvd.init()
folder, batches = Path(sys.argv[1]), int(sys.argv[2])
net = gluon.nn.Dense(1, in_units=4)
net.initialize(mx.init.Zero())
trainer = hvd.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.1})

def once(name):
    try:
        (folder / name).touch(exist_ok=False)
        return True
    except FileExistsError:
        return False

@hvd.elastic.run
def train(state):
    bias = net.bias.data().asscalar().item()
    print("begin", json.dumps([hvd.rank(), hvd.size(), state.batch, bias]), flush=True)
    while state.batch < batches:
        if state.batch == 8 and hvd.rank() == 1 and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        with autograd.record():
            loss = ((net(mx.nd.full((2, 4), 0.1 * state.batch)) - 1) ** 2).mean()
        loss.backward()
        trainer.step(1)
        state.batch += 1
        if state.batch % 5 == 0:
            state.commit()
    print("end", json.dumps([hvd.rank(), hvd.size(), state.batch, net.bias.data().asscalar().item()]), flush=True)

train(hvd.elastic.MxnetState(net.collect_params(), trainer, batch=0))
"""


def lines(said: str, word: str) -> list[list[float]]:
    return [json.loads(line.split(f" {word} ")[1]) for line in said.splitlines() if f" {word} " in line]


def test_a_killed_rank_is_replaced_and_training_goes_on_from_the_commit(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    command = "run", "--no-run-dir", "-np", "2", "--min-np", "1", sys.executable, "train.py", str(tmp_path), "12"
    said = ringtune(tmp_path, *command)
    begin, end = lines(said, "begin"), lines(said, "end")
    assert sorted(begin[:2]) == [[0, 2, 0, 0], [1, 2, 0, 0]]
    assert [one[2] for one in begin[2:]] == [5, 5] and begin[2][3] == begin[3][3] != 0
    whole = lines(ringtune(tmp_path, *command), "end")  # nobody is killed again
    assert sorted(end) == sorted(whole) and [one[:3] for one in sorted(end)] == [[0, 2, 12], [1, 2, 12]]


def test_timeline_and_tuner_see_the_steps_of_a_trainer(tmp_path: Path) -> None:
    text = TRAIN.replace("@hvd.elastic.run\n", "").replace("if state.batch == 8", "if False")
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    flags = "-np", "2", "--run-dir", "run", "--timeline", "trace.json"
    ringtune(tmp_path, "run", *flags, sys.executable, "train.py", str(tmp_path), "60", RINGTUNE_AUTOTUNE="1")
    steps = [json.loads(line)["step"] for line in (tmp_path / "run/steps/rank-00000.jsonl").read_text().splitlines()]
    assert steps == list(range(60))
    assert "allreduce.gradient.1.dense_weight" in (tmp_path / "trace.json").read_text(encoding="utf-8")
    said = ringtune(tmp_path, "timeline", "summary", "trace.json", "--json")
    assert json.loads(said[said.index("{") :])["steps"]["last"] == 59


def test_blocks_of_the_guide_run(tmp_path: Path) -> None:
    for block in pages.read(pages.GUIDE / "mxnet.md").blocks():
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            for line in block.text.strip().split("\n"):
                assert line.startswith("ringtune ")
                said = ringtune(tmp_path, *shlex.split(line)[1:])
                if " run " in line:
                    found = re.search(r"loss ([0-9.]+) on 2 ranks", said)
                    assert found and float(found[1]) < 0.1, said


def test_bench_frameworks(tmp_path: Path) -> None:
    check_bench("mxnet", tmp_path)
