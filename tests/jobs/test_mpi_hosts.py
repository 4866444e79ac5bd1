"""Jobs of mpirun on several hosts, whose ranks meet through MPI's process manager, without mpi4py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import find_tool, needs
from tests.namespaces import machines

needs("ringtune._native")

SUM = """
import os, sys
sys.modules["mpi4py"] = None
import numpy as np
import ringtune.numpy as hvd
hvd.init()
total = hvd.allreduce(np.full(70_001, hvd.rank() + 1.0), op=hvd.Sum, name="x")
assert (total == hvd.size() * (hvd.size() + 1) / 2).all()
found = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
open(f"{sys.argv[1]}/{hvd.rank()}", "w").write(repr(found))
"""
# Open MPI's remote shell, which enters the network namespace of a host and takes its name: `shell HOST COMMAND...`.
SHELL = """#!{python}
import os, sys
spaces = {spaces}
at = next(number for number, word in enumerate(sys.argv) if word in spaces)
name = spaces[sys.argv[at]]
command = f"hostname {{name}} && " + " ".join(sys.argv[at + 1:])
os.execvp("ip", ["ip", "netns", "exec", name, "unshare", "-u", "sh", "-c", command])
"""


@pytest.mark.slow
def test_ranks_meet_through_the_process_manager(tmp_path: Path) -> None:
    program = find_tool("mpi")
    if "Open MPI" not in subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("mpirun is not Open MPI's")
    script, shell, answers = tmp_path / "script.py", tmp_path / "shell", tmp_path / "answers"
    answers.mkdir()
    script.write_text(SUM, encoding="utf-8")
    with machines(2) as spaces:
        shell.write_text(SHELL.format(python=sys.executable, spaces=json.dumps(spaces)), encoding="utf-8")
        shell.chmod(0o755)
        hosts = ",".join(f"{name}:2" for name in spaces)
        words = [program, "--allow-run-as-root", "--mca", "plm_rsh_agent", str(shell), "-H", hosts, "-np", "4"]
        done = subprocess.run(
            [*words, "-x", "RINGTUNE_START_TIMEOUT", sys.executable, str(script), str(answers)],
            env={**os.environ, "RINGTUNE_START_TIMEOUT": "60", "TMPDIR": str(tmp_path)},
            cwd=tmp_path, capture_output=True, text=True, timeout=140, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [(answers / str(rank)).read_text(encoding="utf-8") for rank in range(4)]
    assert found == [repr((rank, 4, rank % 2, 2, rank // 2, 2)) for rank in range(4)]
