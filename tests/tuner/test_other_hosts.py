"""``ringtune tune`` with ranks on another host, by the launcher's stand-in for ssh."""

from __future__ import annotations

import sys

import pytest

from tests.launch.conftest import Jobs, jobs
from tests.launch.test_remote import ssh

__all__ = ["jobs", "ssh"]

# Trains until the memory of all jobs is there; the number of steps only bounds a hang. Says what each rank sees.
SCRIPT = """
import os
from pathlib import Path
import numpy as np
import ringtune.numpy as hvd

hvd.init()
memory = Path(os.environ["XDG_CACHE_HOME"], "ringtune", "studies.db")
for step in range(1_000_000):
    hvd.allreduce(np.ones(1000, np.float32), name="gradient")
    if step % 100 == 99 and hvd.allreduce(np.array([float(memory.exists())]), op=hvd.Max)[0]:
        break
print(hvd.rank(), os.environ["RINGTUNE_HOSTNAME"], os.environ["XDG_CACHE_HOME"], memory.exists(), flush=True)
hvd.shutdown()
"""


@pytest.mark.long
def test_rank_0_remembers_where_the_callers_cache_is_said_to_be(jobs: Jobs, ssh: dict[str, str]) -> None:
    """The login shell over there has no XDG_CACHE_HOME of its own: the caller's goes along."""
    script = jobs.folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    cache = jobs.folder / "my cache"
    job = jobs.start(
        "-np", "2", "-H", "192.0.2.1:2", "--run-dir", str(jobs.folder / "run"), sys.executable, str(script),
        environ={**ssh, "XDG_CACHE_HOME": str(cache)}, command="tune",
    )  # fmt: skip
    stdout, stderr = (text.decode() for text in job.communicate(timeout=280))
    assert job.returncode == 0, stdout + stderr
    assert {f"[{rank}] {rank} 192.0.2.1 {cache} True" for rank in range(2)} <= set(stdout.splitlines())
