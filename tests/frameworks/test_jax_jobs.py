"""Whole jobs with JAX, as users start them: training, timeline, elastic jobs, the guide."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optax", reason="JAX is not installed; `make test-frameworks` makes an environment with it")

from tests import pages
from tests.frameworks.bench import check_bench

pytestmark = pytest.mark.slow

FRONT = "jax"
EXAMPLE = Path(__file__).parents[2] / "benchmarks" / "examples" / "jax_mlp.py"
PATTERN = re.compile(r"ranks (\d), loss ([0-9.]+), accuracy ([0-9.]+)")
HANG_S = 200.0  # a bound on hangs


def ringtune(folder: Path, *arguments: str, expect: int = 0) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTUNE_", "HOROVOD_"))}
    environ = {
        **kept,
        "JAX_PLATFORMS": "cpu",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", *arguments],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_training_has_the_loss_of_one_process(tmp_path: Path) -> None:
    found = {}
    for ranks in ("1", "2", "3"):
        command = [sys.executable, str(EXAMPLE), "--steps", "30", "--float64"]
        said = PATTERN.search(ringtune(tmp_path, "run", "-np", ranks, "--no-run-dir", *command))
        assert said is not None and said.group(1) == ranks
        found[ranks] = said.groups()[1:]
    assert found["2"] == found["1"] and found["3"] == found["1"]
    assert 0 < float(found["1"][0]) < 0.3 and float(found["1"][1]) > 0.95


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of the example with its timeline, one rank of which is slow by 20 ms a step."""
    folder = tmp_path_factory.mktemp("recorded")
    script = folder / "slow.py"
    text = EXAMPLE.read_text(encoding="utf-8")
    slow = "    for _ in range(args.steps):\n        import time\n        time.sleep(0.02 * hvd.rank())\n"
    changed = text.replace("    for _ in range(args.steps):\n", slow)
    changed = changed.replace("step(params, state)\n", "jax.block_until_ready(step(params, state))\n")
    assert changed.count("sleep") == 1 and changed.count("block_until_ready") == 1
    script.write_text(changed, encoding="utf-8")
    run = folder / "run"
    command = ["--run-dir", str(run), "--timeline", str(folder / "trace.json"), sys.executable, str(script)]
    ringtune(folder, "run", "-np", "2", *command, "--steps", "60")
    return run


def test_the_timeline_has_steps_and_names(recorded: Path) -> None:
    said = ringtune(recorded.parent, "timeline", "summary", str(recorded.parent / "trace.json"), "--json")
    text = json.dumps(json.loads(said[said.index("{") :]))
    assert "allreduce.gradients.hidden.w" in (recorded.parent / "trace.json").read_text(encoding="utf-8")
    assert '"steps"' in text
    logged = (recorded / "steps" / "rank-00000.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(logged) >= 60


def test_stragglers_name_the_slow_rank(recorded: Path) -> None:
    said = ringtune(recorded.parent, "timeline", "stragglers", str(recorded.parent / "trace.json"))
    assert re.search(r"rank 1\b", said), said


TRAIN = """
import json, os, signal, sys
from pathlib import Path
import jax, jax.numpy as jnp, optax
import ringtune.jax as hvd

hvd.init()
folder, batches = Path(sys.argv[1]), int(sys.argv[2])
chain = optax.chain(hvd.average_gradients(), optax.sgd(0.1, momentum=0.9))
params = {"w": jnp.zeros(4), "b": jnp.zeros(())}

@jax.jit
def step(params, state, x):
    gradients = jax.grad(lambda p: ((x @ p["w"] + p["b"] - 1) ** 2).mean())(params)
    updates, state = chain.update(gradients, state, params)
    return optax.apply_updates(params, updates), state

def once(name):
    try:
        (folder / name).touch(exist_ok=False)
        return True
    except FileExistsError:
        return False

@hvd.elastic.run
def train(state):
    print("begin", json.dumps([hvd.rank(), hvd.size(), state.batch, float(state.params["b"])]), flush=True)
    while state.batch < batches:
        x = jnp.full((2, 4), 0.1 * state.batch)
        state.params, state.opt_state = step(state.params, state.opt_state, x)
        state.batch += 1
        if state.batch == 8 and hvd.rank() == 1 and once("killed"):
            jax.block_until_ready(state.params)
            os.kill(os.getpid(), signal.SIGKILL)
        if state.batch % 5 == 0:
            state.commit()
    same = hvd.allgather(state.params["w"][None])
    assert (same == same[0]).all()
    print("end", json.dumps([hvd.rank(), hvd.size(), state.batch, float(state.params["b"])]), flush=True)

train(hvd.elastic.JaxState(params=params, opt_state=chain.init(params), batch=0))
"""


def lines(said: str, word: str) -> list[list[float]]:
    return [json.loads(line.split(f" {word} ")[1]) for line in said.splitlines() if f" {word} " in line]


def test_a_killed_rank_is_replaced_and_training_goes_on_from_the_commit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    flags = "run", "--no-run-dir", "-np", "2", "--min-np", "1"
    said = ringtune(tmp_path, *flags, sys.executable, str(script), str(tmp_path), "20")
    begin, end = lines(said, "begin"), lines(said, "end")
    assert sorted(begin[:2]) == [[0, 2, 0, 0], [1, 2, 0, 0]]
    again = [one for one in begin if one[2] == 5]
    assert again, f"nobody went on from the commit: {said}"
    assert len({one[3] for one in again}) == 1 and again[0][3] != 0
    assert end and all(one[2] == 20 for one in end)
    (tmp_path / "killed").touch()
    whole = lines(ringtune(tmp_path, *flags, sys.executable, str(script), str(tmp_path), "20"), "end")
    assert {one[3] for one in end} == {one[3] for one in whole}, "the same as without a loss"


@pytest.mark.parametrize("block", pages.read(pages.GUIDE / "jax.md").blocks(), ids=lambda block: block.title or "block")
def test_blocks_of_the_guide_run(block: pages.Block, tmp_path: Path) -> None:
    files = {one.title: one.text for one in pages.read(pages.GUIDE / "jax.md").blocks() if one.title}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    if block.title:
        ringtune(tmp_path, "run", "-np", "2", "--no-run-dir", sys.executable, block.title)
    elif block.language == "sh":
        command = block.text.strip().split("\n")
        for line in command:
            assert line.startswith("ringtune ") or line.startswith("pip "), line
            if line.startswith("ringtune "):
                ringtune(tmp_path, *line.split()[1:])


def test_bench_frameworks(tmp_path: Path) -> None:
    check_bench("jax", tmp_path)
