"""A script started by Open MPI's own mpirun finds its rank, and its timeline is merged without the launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import find_tool

SCRIPT = """
import torch, ringtune.torch as hvd
hvd.init()
total = hvd.allreduce(torch.ones(3) * (hvd.rank() + 1), op=hvd.Sum).tolist()
open(f"rank-{hvd.rank()}", "w").write(f"{hvd.size()} {hvd.local_rank()} {hvd.local_size()} {total}")
hvd.shutdown()
"""


def test_ranks_under_mpirun(tmp_path: Path) -> None:
    mpirun = find_tool("mpi")
    (tmp_path / "train.py").write_text(SCRIPT)
    job = subprocess.run(
        [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "3", sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "RINGTUNE_TIMELINE": "trace.json", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(3)] == [
        f"3 {rank} 3 [6.0, 6.0, 6.0]" for rank in range(3)
    ]
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert {event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"} == {0, 1, 2}
