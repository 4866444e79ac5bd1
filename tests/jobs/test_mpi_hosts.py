"""Jobs of mpirun on several hosts: ranks meet through MPI's process manager, without mpi4py, or data goes by MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import needs
from tests.jobs.mpi_starters import mpi
from tests.namespaces import machines

needs("ringtune._native")

SUM = """
import os, sys
by_mpi = os.environ.get("RINGTUNE_TRANSPORT") == "mpi"
if not by_mpi:
    sys.modules["mpi4py"] = None
import numpy as np
import ringtune.numpy as hvd
from ringtune import session
hvd.init()
if by_mpi:
    assert set(session.require()._runtime.transports) == {"self", "mpi"}
for number in range(3):
    total = hvd.allreduce(np.full(700_001, hvd.rank() + 1.0), op=hvd.Sum, name="x")
    assert (total == hvd.size() * (hvd.size() + 1) / 2).all()
rows = hvd.allgather(np.full((hvd.rank() + 1, 3), hvd.rank()), name="rows")
assert rows[:, 0].tolist() == [one for one in range(hvd.size()) for _ in range(one + 1)]
found = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
open(f"{sys.argv[1]}/{hvd.rank()}", "w").write(repr(found))
"""
# MPI's remote shell, which enters the network namespace of a host and takes its name: `shell HOST COMMAND...`.
SHELL = """#!{python}
import os, sys
spaces = {spaces}
at = next(number for number, word in enumerate(sys.argv) if word in spaces)
name = spaces[sys.argv[at]]
command = f"hostname {{name}} && " + " ".join(sys.argv[at + 1:])
os.execvp("ip", ["ip", "netns", "exec", name, "unshare", "-u", "sh", "-c", command])
"""


def command(where: str, shell: Path, spaces: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return how MPI starts four ranks on two hosts, and variables of theirs."""
    hosts = ",".join(f"{name}:2" for name in spaces)
    [program], environ = mpi(where)
    if where == "beside":
        near = next(iter(spaces)).rpartition(".")[0] + ".1"  # this host, as the others reach it
        flags = ["-launcher", "ssh", "-launcher-exec", str(shell), "-localhost", near, "-hosts", hosts]
        return [program, *flags, "-n", "4"], environ
    if "Open MPI" not in subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("mpirun is not Open MPI's")
    flags = ["--allow-run-as-root", "--mca", "plm_rsh_agent", str(shell), "-H", hosts, "-np", "4"]
    names = ["RINGTUNE_START_TIMEOUT", "RINGTUNE_TRANSPORT", *environ]
    return [program, *flags, *(word for name in names for word in ("-x", name))], environ


@pytest.mark.slow
@pytest.mark.parametrize(("where", "transport"), [("installed", "auto"), ("beside", "auto"), ("beside", "mpi")])
def test_two_hosts(where: str, transport: str, tmp_path: Path) -> None:
    if transport == "mpi":
        needs("mpi4py")
    script, shell, answers = tmp_path / "script.py", tmp_path / "shell", tmp_path / "answers"
    answers.mkdir()
    script.write_text(SUM, encoding="utf-8")
    with machines(2) as spaces:
        shell.write_text(SHELL.format(python=sys.executable, spaces=json.dumps(spaces)), encoding="utf-8")
        shell.chmod(0o755)
        words, environ = command(where, shell, spaces)
        variables = {"RINGTUNE_START_TIMEOUT": "60", "RINGTUNE_TRANSPORT": transport, "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            [*words, sys.executable, str(script), str(answers)], env={**os.environ, **environ, **variables},
            cwd=tmp_path, capture_output=True, text=True, timeout=140, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [(answers / str(rank)).read_text(encoding="utf-8") for rank in range(4)]
    assert found == [repr((rank, 4, rank % 2, 2, rank // 2, 2)) for rank in range(4)]
