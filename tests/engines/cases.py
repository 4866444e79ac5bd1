"""What ranks of an engine's job do in tests. The functions travel by value: workers need not find this file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STEPS = 20
NOTICED_WITHIN_S = 10.0
"""How soon a rank is told of a death: a fifth of it where the machine is quiet, so much under the load of tests."""
ROWS = 1792
"""Of scikit-learn's digits: a multiple of the numbers of ranks here."""


def digits() -> tuple[Any, Any]:
    """Return images (rows, 64) between 0 and 1, and digits (rows,)."""
    import gzip
    from importlib.util import find_spec

    import numpy as np
    import torch

    # Read as it lies: scikit-learn itself takes seconds to import in every process.
    found = find_spec("sklearn")
    assert found is not None and found.submodule_search_locations
    with gzip.open(f"{found.submodule_search_locations[0]}/datasets/data/digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")[:ROWS]
    return torch.tensor(rows[:, :-1] / 16.0), torch.tensor(rows[:, -1].astype(np.int64))


def model() -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)).double()


def train_alone() -> float:
    """Return the loss after some steps of one process on all rows."""
    import torch

    images, targets = digits()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), targets).backward()
        optimizer.step()
    return float(torch.nn.functional.cross_entropy(net(images), targets).detach())


def train(name: str = "") -> dict[str, Any]:
    """Train on this rank's rows; return the loss on all of them, and where this rank was."""
    import torch

    import ringtune.torch as hvd

    hvd.init()
    images, targets = digits()
    own = slice(hvd.rank(), None, hvd.size())
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9))
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images[own]), targets[own]).backward()
        optimizer.step()
    loss = float(torch.nn.functional.cross_entropy(net(images), targets).detach())
    found = {"rank": hvd.rank(), "size": hvd.size(), "local_size": hvd.local_size(), "loss": loss, "name": name,
             "pid": os.getpid()}  # fmt: skip
    hvd.shutdown()
    return found


def train_elastically(folder: str, dies_at: int, total: int = STEPS, executor: bool = False) -> dict[str, Any]:
    """Train with commits; rank 1 dies at a step, once (see `die_on`). Return the loss.

    Files in the folder tell where each start began, and the errors of the other ranks.
    """
    import torch

    import ringtune.torch as hvd

    hvd.init()
    images, targets = digits()
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9))
    state = hvd.elastic.TorchState(net, optimizer, step=0)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        if hvd.rank() == 0:
            with open(Path(folder) / "starts", "a", encoding="utf-8") as file:
                file.write(f"{state.step} {hvd.size()}\n")
        own = slice(hvd.rank(), None, hvd.size())
        while state.step < total:
            with noticing(folder, hvd.rank()):
                if state.step == dies_at:
                    # All have committed the step before, and none can end this one.
                    hvd.allreduce(torch.ones(1), name="committed")
                    if hvd.rank() == 1:
                        die(folder, _parent_of(os.getppid()) if executor else os.getpid())
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(images[own]), targets[own]).backward()
                optimizer.step()
            state.step += 1
            state.commit()

    loop(state)
    loss = float(torch.nn.functional.cross_entropy(net(images), targets).detach())
    found = {"rank": hvd.rank(), "size": hvd.size(), "loss": loss}
    hvd.shutdown()
    return found


def merged(trace: Path) -> None:
    """Check that a timeline holds what both ranks reduced."""
    import json

    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in events if "ALLREDUCE" in str(event.get("name", "")).upper()} >= {0, 1}


def seen_in_the_dashboard(run: Path, ranks: int = 2) -> None:
    """Check what the dashboard shows of a run of `train`: its line in the table, and its report."""
    import subprocess
    import sys

    from ringtune.dashboard.data.runs import RunsFolder

    [row] = RunsFolder(run).rows()
    assert (row.info.status, row.info.ranks, row.info.problems) == ("finished", ranks, ())
    assert row.steps >= STEPS
    page = run.parent / "report.html"
    command = [sys.executable, "-m", "ringtune.cli", "report", str(run), "--output", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert f"rank {ranks - 1}" in text and "ALLREDUCE" in text.upper()


def reduce_in_torch() -> float:
    """Return a sum over all ranks, by ``torch.distributed`` on ringtune's backend without an import of ringtune's."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("ringtune")
    tensor = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(tensor)
    return float(tensor)


def fail_on(rank: int) -> None:
    """Raise an error on one rank, for which the others wait."""
    import torch

    import ringtune.torch as hvd

    hvd.init()
    if hvd.rank() == rank:
        raise KeyError(f"no such row on rank {rank}")
    hvd.allreduce(torch.ones(3), name="never")


def die_on(rank: int, folder: str, executor: bool = False) -> None:
    """Kill one rank, for which the others wait; they leave the error that they get, and when.

    Args:
        rank: The rank.
        folder: Where they leave it.
        executor: Whether to kill what the rank's process belongs to (its parent's parent) instead.
    """
    import torch

    import ringtune.torch as hvd

    hvd.init()
    with noticing(folder, hvd.rank()):
        hvd.allreduce(torch.ones(3), name="once")
        if hvd.rank() == rank:
            die(folder, _parent_of(os.getppid()) if executor else os.getpid())
        hvd.allreduce(torch.ones(3), name="never")


def die(folder: str | Path, victim: int | None = None) -> None:
    """Kill this rank's process, or what it belongs to; leave when in the folder, unless that was done before."""
    try:
        with open(Path(folder) / "killed", "x", encoding="utf-8") as file:
            file.write(repr(time.time()))
    except FileExistsError:
        return
    os.kill(os.getpid() if victim is None else victim, signal.SIGKILL)
    time.sleep(60)


def started(folder: str | Path, step: int) -> None:
    """Leave the step at which rank 0 begins, and the number of ranks, after those of earlier starts."""
    if os.environ["RINGTUNE_RANK"] == "0":
        with open(Path(folder) / "starts", "a", encoding="utf-8") as file:
            file.write(f"{step} {os.environ['RINGTUNE_SIZE']}\n")


@contextmanager
def noticing(folder: str | Path, rank: int) -> Iterator[None]:
    """Leave in the folder the error that a rank gets, and when."""
    try:
        yield
    except Exception as error:
        (Path(folder) / "noticed").write_text(repr(time.time()), encoding="utf-8")
        (Path(folder) / f"error-{rank}").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        raise


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def place(_: Any = None) -> dict[str, str | None]:
    """Return what this rank's environment says."""
    return {name: os.environ.get(name) for name in ("RINGTUNE_RANK", "RINGTUNE_SECRET", "WORLD_SIZE", "WORD", "SECOND")}
