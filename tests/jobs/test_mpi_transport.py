"""MPI carries the data: by the mpirun that is installed, and by an MPI beside this Python (`pip install mpich`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import needs
from tests.jobs.mpi_starters import mpi
from tests.launch.conftest import DRIVER

needs("ringtune._native")
needs("mpi4py")

SCRIPT = """
import numpy as np
import ringtune.numpy as hvd
import ringtune.torch as torch_front_end
from ringtune import session

assert torch_front_end.mpi_built() and not torch_front_end.mpi_enabled()
for round in range(2):
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    assert torch_front_end.mpi_enabled() and torch_front_end.mpi_threads_supported()
    assert set(session.require()._runtime.transports) == {"self", "mpi"}
    for count in (1, 1000, 2_000_003):
        for _ in range(3):
            total = hvd.allreduce(np.full(count, rank + 1, np.int64), op=hvd.Sum, name=f"sum.{count}")
            assert (total == size * (size + 1) // 2).all()
    rows = hvd.allgather(np.full((rank + 1, 3), rank), name="rows")
    assert rows[:, 0].tolist() == [one for one in range(size) for _ in range(one + 1)]
    assert (hvd.broadcast(np.arange(70_001) * (rank + 1), 1, name="from.1") == np.arange(70_001) * 2).all()
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        assert hvd.allreduce(np.full(9, rank), op=hvd.Sum, name="pair", process_set=pair).tolist() == [2] * 9
    hvd.remove_process_set(pair)
    hvd.shutdown()
open(f"done-{rank}", "w").write("")
"""
REFUSED = """
import ringtune.numpy as hvd
hvd.init()
"""


def run(folder: Path, where: str, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program, environ = mpi(where)
    (folder / "script.py").write_text(text, encoding="utf-8")
    version = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True).stdout
    flags = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version else []
    return subprocess.run(
        [*program, *flags, "-n", "3", sys.executable, "script.py"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ, **variables},
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("where", ["installed", "beside"])
def test_all_kinds_of_collectives_go_by_mpi(where: str, tmp_path: Path) -> None:
    done = run(tmp_path, where, SCRIPT, RINGTUNE_TRANSPORT="mpi", RINGTUNE_DYNAMIC_PROCESS_SETS="1")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0", "done-1", "done-2"}


@pytest.mark.slow
def test_what_cannot_work_is_said(tmp_path: Path) -> None:
    text = "import mpi4py\nmpi4py.rc.thread_level = 'single'\n" + REFUSED
    assert (
        "needs an MPI that several threads may call"
        in run(tmp_path, "installed", text, RINGTUNE_TRANSPORT="mpi").stderr
    )
    (tmp_path / "alone.py").write_text(REFUSED, encoding="utf-8")
    alone = subprocess.run(
        [sys.executable, str(DRIVER), "run", "-np", "2", "--no-run-dir", sys.executable, "alone.py"],
        env={**os.environ, "RINGTUNE_TRANSPORT": "mpi"}, cwd=tmp_path, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert alone.returncode == 1
    assert "is rank 0 of 1 in mpi4py's MPI: start the job with mpirun of that MPI" in alone.stderr
