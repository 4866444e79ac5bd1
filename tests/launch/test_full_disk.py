"""A disk that fills while a job trains: what cannot be written is said, and the job ends with code 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import needs
from tests.launch.conftest import DRIVER, Jobs
from tests.launch.test_surroundings import isolated, run_as

needs("ringtune._native")

TRAIN = """
import numpy as np
import ringtune.numpy as hvd
from ringtune.session import Session
hvd.init()
rank = hvd.rank()
for step in range(120):
    for name in "abc":
        hvd.allreduce(np.ones(1000, np.float32), name=name)
    Session.current().end_step()
    if step == 20 and rank == 0:
        try:
            with open("filler", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError as error:
            print(error.strerror)
hvd.shutdown()
os.write(2 if rank else 1, b"trained\\n" * 2000)
open(done, "a").write("x")
"""
PLACE = "mount -t tmpfs -o size=2m tmpfs disk; cd disk"
WRITERS = ["--run-dir", "r", "--logs", "--output-filename", "o", "--timeline", "t.json", "--autotune"]


def train(jobs: Jobs, flags: list[str], after: str = "") -> tuple[subprocess.CompletedProcess[str], Path]:
    """Train on a small disk of its own; return the job and the file where every rank that has trained writes an x."""
    (jobs.folder / "disk").mkdir()
    done = jobs.folder / "done"
    script = jobs.script(TRAIN.replace("open(done", f"open({str(done)!r}"))
    words = [sys.executable, str(DRIVER), "run", "-np", "2", *flags, sys.executable, script]
    return run_as(jobs, isolated("-m", PLACE + after, words)), done


@pytest.mark.slow
def test_a_job_that_has_trained_ends_well(jobs: Jobs) -> None:
    found, done = train(jobs, [*WRITERS, "--autotune-log-file", "a.csv", "--no-prefix"])
    assert found.returncode == 0, found.stderr
    assert done.read_text(encoding="utf-8") == "xx" and "No space left on device" in found.stdout
    lines = found.stderr.splitlines()
    crowded = "times will tell little about a real job"  # said where this machine has one core
    of_the_disk = [line for line in lines if "warning" in line and crowded not in line]
    # Where the timeline itself still fits once the parts have their ends, what they lost is said.
    said = ("No space left on device", "spans were dropped while recording")
    assert not [line for line in of_the_disk if not any(words in line for words in said)]
    # How the job ended is noted where the room that the parts had kept for their ends, and gave back, is enough.
    assert "Traceback" not in found.stderr
    # Each file that cannot be written is said once while the job trains.
    kept = [line for line in lines if "is kept no further" in line]
    assert len(kept) == len(set(kept)) and any("/r/logs/rank-0000" in line for line in kept)
    assert sum("the step log ends here" in line and "[rank 0]" in line for line in lines) <= 1


@pytest.mark.slow
def test_a_console_on_the_full_disk_is_no_failure(jobs: Jobs) -> None:
    found, done = train(jobs, WRITERS, " && exec >out 2>err")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert done.read_text(encoding="utf-8") == "xx"


@pytest.mark.slow
def test_steps_that_cannot_be_recorded_are_said_once(jobs: Jobs) -> None:
    flags = ["--run-dir", "r", "--timeline", "t.json", "--timeline-steps", "40:60,80:100", "--no-prefix"]
    found, done = train(jobs, flags)
    assert found.returncode == 0 and done.read_text(encoding="utf-8") == "xx", found.stderr
    for first in (40, 80):
        assert found.stderr.count(f"[rank 0] steps from {first} on are not recorded") == 1, found.stderr
