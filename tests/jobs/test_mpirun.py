"""A script started by Open MPI's own mpirun finds its rank, and its timeline is merged without the launcher."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import find_tool, missing

SCRIPT = """
import torch, ringtune.torch as hvd
hvd.init()
total = hvd.allreduce(torch.ones(3) * (hvd.rank() + 1), op=hvd.Sum).tolist()
open(f"rank-{hvd.rank()}", "w").write(f"{hvd.size()} {hvd.local_rank()} {hvd.local_size()} {total}")
hvd.shutdown()
"""


COMMUNICATORS = """
from mpi4py import MPI
import torch, ringtune.torch as hvd
world = MPI.COMM_WORLD
halves = world.Split(world.rank % 2, world.rank)
half = hvd.ProcessSet(halves)
hvd.init(comm=world, process_sets=[half])
assert (hvd.rank(), hvd.size()) == (world.rank, world.size)
total = hvd.allreduce(torch.ones(1) * hvd.rank(), op=hvd.Sum, process_set=half).item()
open(f"rank-{hvd.rank()}", "w").write(f"{half.ranks} {half.rank()} {half.size()} {total} {half.mpi_comm is halves}")
world.Barrier()
hvd.shutdown()
try:
    hvd.init(comm=halves)
except Exception as error:
    open(f"refused-{world.rank}", "w").write(f"{type(error).__name__}: {error}")
"""


def mpirun_script(folder: Path, ranks: int, text: str, **variables: str) -> None:
    mpirun = find_tool("mpi")
    (folder / "train.py").write_text(text)
    job = subprocess.run(
        [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert job.returncode == 0, job.stderr


@pytest.mark.slow
def test_communicators_of_mpi4py(tmp_path: Path) -> None:
    if importlib.util.find_spec("mpi4py") is None:
        missing("needs mpi4py (pip install mpi4py)")
    mpirun_script(tmp_path, 3, COMMUNICATORS)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(3)] == [
        "[0, 2] 0 2 2.0 True",
        "[1] 0 1 1.0 True",
        "[0, 2] 1 2 2.0 True",
    ]
    for rank in range(3):
        said = (tmp_path / f"refused-{rank}").read_text()
        assert said.startswith("NotSupported: init(comm=") and "all ranks 0 to 2 together" in said


@pytest.mark.slow
def test_ranks_under_mpirun(tmp_path: Path) -> None:
    mpirun_script(tmp_path, 3, SCRIPT, RINGTUNE_TIMELINE="trace.json")
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(3)] == [
        f"3 {rank} 3 [6.0, 6.0, 6.0]" for rank in range(3)
    ]
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert {event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"} == {0, 1, 2}
