"""`ringtune record`: jobs of torchrun on Gloo, whose scripts know nothing of ringtune."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringtune.timeline.inputs import load
from ringtune.timeline.spans import SpanTable
from ringtune.timeline.vocabulary import FOREIGN_BATCHES, Stage
from tests.ports import free_port

BIN = Path(sys.executable).parent
STEPS = 30
SLOW_S = 0.05

DDP = f"""
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.randn({STEPS} * 8, 64))
for (batch,) in torch.utils.data.DataLoader(rows, batch_size=8):
    time.sleep({SLOW_S} * rank)
    optimizer.zero_grad()
    loss = ddp(batch).square().mean()
    loss.backward()
    optimizer.step()
    with torch.inference_mode():
        dist.all_reduce(loss.detach().clone())
"""

EVERYTHING = """
import subprocess, sys, torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
assert not [name for name in sys.modules if name.startswith("ringtune.tuner")]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
ones = torch.ones(size * 2)
dist.all_reduce(ones)
assert ones.eq(size).all()
dist.broadcast(ones, 0)
dist.reduce(torch.ones(3), 0)
gathered = [torch.zeros(2) for _ in range(size)]
dist.all_gather(gathered, torch.full((2,), float(rank)))
assert [one[0].item() for one in gathered] == list(range(size))
received = torch.zeros(size)
dist.all_to_all_single(received, torch.full((size,), float(rank)))
assert received.tolist() == list(range(size))
dist.gather(torch.ones(1), [torch.ones(1) for _ in range(size)] if rank == 0 else None)
dist.scatter(torch.ones(1), [torch.ones(1) for _ in range(size)] if rank == 0 else None)
works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(3)]
for work in works:
    work.wait()
for _ in range(2):  # the first one loads much of torch, and is done by then
    assert functional.all_reduce(torch.ones(1 << 20), "sum", dist.group.WORLD).eq(size).all()
dist.barrier()
pair = dist.new_group([0, 1])
if rank < 2:
    dist.all_reduce(torch.ones(1), group=pair)
    token = torch.zeros(1)
    dist.send(token + 7, 1) if rank == 0 else dist.recv(token, 0)
    assert rank == 0 or token.item() == 7
dist.all_gather_object([None] * size, {"rank": rank})
compiled = torch.compile(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4)), backend="eager")
optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
for _ in range(2):
    compiled(torch.ones(2, 4)).sum().backward()
    optimizer.step()
torch.compile(torch.nn.Linear(4, 4), backend="eager", fullgraph=True)(torch.ones(2, 4))
from ringtune.torch import recorder  # of a benchmark, or to record a part
wait = dist.Work.wait
recorder.leave()
assert dist.Work.wait is not wait
dist.all_reduce(torch.ones(1))
recorder.join()
dist.all_reduce(torch.ones(1))
if rank == 0:  # an evaluation with a group of its own is no rank of this job
    subprocess.run([sys.executable, "-c", os.environ["EVALUATION"]], check=True)
dist.destroy_process_group()
"""

EVALUATION = """
import torch, torch.distributed as dist
for backend in ("gloo", "ringtune"):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
"""

KILLED = "n = 0\n" + DDP.replace(
    "    optimizer.step()\n",
    "    optimizer.step()\n    rank == 1 and n == 5 and os.kill(os.getpid(), signal.SIGKILL)\n    n += 1\n",
)


def record(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script on two ranks by torchrun under `ringtune record`, from an empty folder."""
    torchrun = [BIN / "torchrun", "--nproc-per-node", "2", "--master-port", str(free_port())]
    return run(folder, script, [BIN / "ringtune", "record", "-o", "trace.json", "--", *torchrun])


def run(folder: Path, script: str, launcher: list[Any]) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text("import os, signal\n" + script, encoding="utf-8")
    return subprocess.run(
        [*launcher, "train.py"],
        cwd=folder, capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "EVALUATION": EVALUATION},
    )  # fmt: skip


def read(folder: Path, *command: str, source: str | Path = "trace.json") -> Any:
    done = subprocess.run(
        [BIN / "ringtune", "timeline", *command, source, "--json"], cwd=folder, capture_output=True, text=True,
        timeout=100, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def assert_begun_in_their_steps(spans: SpanTable) -> None:
    """Whoever saw the end of a rank's span, and when: it is of the step in which it began."""
    steps = spans.of_stage(Stage.STEP)
    moments = np.sort(np.append(steps.begin_ns, steps.end_ns.max()))
    for stage in (Stage.NEGOTIATE, Stage.COMMUNICATE, Stage.WAIT, Stage.RANGE):
        of_stage = spans.of_stage(stage)
        assert of_stage.step.tolist() == (np.searchsorted(moments, of_stage.begin_ns, "right") - 1).tolist(), stage


@pytest.mark.slow
def test_the_slow_rank_of_a_ddp_job_is_named(tmp_path: Path) -> None:
    done = record(tmp_path, DDP)
    assert done.returncode == 0, done.stderr
    assert "timeline of 2 ranks" in done.stderr and "worse than they claim" not in done.stderr
    found = read(tmp_path, "stragglers")
    late = Counter({(1, "compute"): 0})
    for one in found["verdicts"]:  # what else happens on a busy machine is another verdict
        late[one["rank"], one["cause"]] += one["late_steps"]
    assert late[1, "compute"] > STEPS / 2 > late[0, "compute"], found["verdicts"]
    assert not [cause for _, cause in late if cause == "negotiation"], "nothing was negotiated"
    spans = load(tmp_path / "trace.json").spans
    names = Counter(
        spans.names[name] for name, stage in zip(spans.name, spans.stage, strict=True) if stage == Stage.RANGE
    )
    assert names["optimizer"] == names["backward"] == 2 * STEPS and names["forward"] == 2 * (STEPS - 1)
    assert names["data loading"] == 2 * (STEPS + 1)  # the last one finds the end
    texts = zip(spans.tensor_texts(), spans.stage == Stage.COMMUNICATE, strict=True)
    buckets = Counter(text for text, here in texts if here and "bucket" in text)
    # DDP forms its buckets in the second step, and says so after the third.
    assert buckets == {
        f"world: bucket {of}": 2 * (STEPS - 3) for of in ("0 (3.bias to 2.weight)", "1 (1.bias to 0.weight)")
    }
    for rank in range(2):
        assert_begun_in_their_steps(spans.of_rank(rank))
    summary = read(tmp_path, "summary", "--all-steps")
    assert summary["steps"]["count"] == STEPS
    assert summary["fusion"] is None and not summary["knobs_versions"], "another library carried everything"
    first, second = (one["stages"]["wait"]["total_ns"] for one in summary["ranks"])
    assert first > STEPS * SLOW_S * 1e9 / 2 > second, "rank 0 waits for rank 1"


@pytest.mark.slow
def test_every_collective_of_every_group_is_recorded_alike_on_its_ranks(tmp_path: Path) -> None:
    launcher = [BIN / "ringtune", "run", "-np", "3", "--timeline", "trace.json", sys.executable]
    done = run(tmp_path, EVERYTHING, launcher)
    assert done.returncode == 0, done.stderr
    assert "Dynamo" not in done.stderr
    assert done.stderr.count("ringtune: timeline of 3 ranks") == done.stderr.count("timeline of") == 1
    assert "warning: init()" not in done.stderr
    spans = load(tmp_path / "trace.json").spans
    here = spans.stage == Stage.COMMUNICATE
    kinds = Counter(
        (spans.names[name], int(rank)) for name, rank in zip(spans.name[here], spans.rank[here], strict=True)
    )
    assert {name for name, _ in kinds} == {
        f"RING_{kind}"
        for kind in (
            "ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "ALLTOALL", "GATHER", "SCATTER", "BARRIER", "SEND", "RECV"
        )
    }  # fmt: skip
    assert [kinds["RING_ALLREDUCE", rank] for rank in range(3)] == [10, 10, 9]
    assert (kinds["RING_SEND", 0], kinds["RING_RECV", 1]) == (1, 1)
    waits = {text for text, stage in zip(spans.tensor_texts(), spans.stage, strict=True) if stage == Stage.WAIT}
    assert "world: allreduce 5" in waits, "the second functional one's"
    for name in ("BROADCAST", "REDUCE", "ALLTOALL", "GATHER", "SCATTER", "BARRIER", "ALLGATHER"):
        assert len({kinds[f"RING_{name}", rank] for rank in range(3)}) == 1, name
    moved = spans.take(here & (np.array(spans.tensor_texts()) == "world: reduce 0"))
    assert moved.bytes.tolist() == [3 * 4] * 3
    assert all('"dtype":"float32"' in moved.fact_texts[code] for code in moved.facts.tolist())
    batches = [set(spans.batch[here & (spans.rank == rank) & (spans.batch > 0)].tolist()) for rank in range(3)]
    assert batches[0] == batches[1] > batches[2], "a collective has one number on all its ranks"
    assert min(batches[0]) in FOREIGN_BATCHES and max(batches[0]) in FOREIGN_BATCHES


@pytest.mark.slow
def test_what_a_killed_rank_has_recorded_is_kept(tmp_path: Path) -> None:
    done = record(tmp_path, KILLED)
    assert done.returncode != 0
    spans = load(tmp_path / "trace.json").spans
    for rank in range(2):
        assert ((spans.stage == Stage.COMMUNICATE) & (spans.rank == rank)).sum() >= 5, done.stderr


def test_a_command_that_is_none_and_one_without_ranks_are_answered_in_words(tmp_path: Path) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "ringtune", "record", "--", *command], cwd=tmp_path, capture_output=True, text=True, timeout=100
        )

    missing, idle, failed = run("no-such-launcher", "x"), run("true"), run(sys.executable, "-c", "raise SystemExit(3)")
    assert missing.returncode == 2 and "no-such-launcher: no such program" in missing.stderr
    assert idle.returncode == 1 and "no process of the command called" in idle.stderr
    assert failed.returncode == 1 and "ended with 3" in failed.stderr


def test_a_process_that_nobody_records_loads_nothing_of_it() -> None:
    look = "import sys, torch; print([one for one in sys.modules if one.startswith('ringtune')])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=100, check=True)
    assert set(json.loads(done.stdout.replace("'", '"'))) <= {"ringtune", "ringtune.autoload"}


def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [BIN / "ringtune", "record", "--", sys.executable, "-uc", "print('up'); import time; time.sleep(100)"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGTERM)
    assert "ended with 143" in child.communicate(timeout=60)[1]
