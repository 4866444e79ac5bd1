"""A real job, watched while it runs and when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringtune import layout
from ringtune.dashboard.pictures import serving
from tests.dashboard.conftest import Visit

pytestmark = pytest.mark.slow

TRAINING = """
import time
import ringtune
from ringtune.operations import Barrier

session = ringtune.init()
while True:
    ticket = session.submit(Barrier("step"))
    session.wait(ticket)
    session.release(ticket)
    session.end_step()
    time.sleep(0.02)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """The run folder of a job of two ranks that trains until it is ended."""
    run = tmp_path / "runs" / "endless"
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    command = [sys.executable, "-m", "ringtune.cli", "run", "-np", "2", "--run-dir", str(run), "--no-prefix"]
    with subprocess.Popen([*command, sys.executable, str(script)], stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 120
            while not layout.step_log(run, 1).is_file() or not layout.step_log(run, 1).stat().st_size:
                assert process.poll() is None and time.monotonic() < deadline, "the job did not start"
                time.sleep(0.05)
            yield run
        finally:
            process.terminate()


def _pid(run: Path, rank: int) -> int:
    return int(json.loads(layout.machine_file(run, rank).read_text())["pid"])


def test_a_job_that_is_killed_shows_how_it_ended_without_reloading(visit: Visit, job: Path) -> None:
    page = visit.page
    with serving(job.parent) as address:
        page.goto(f"{address}run/{job.name}")
        page.wait_for_selector("#run-status >> text=live")
        steps = "Number(document.querySelector('#overview-stats .rt-stat-value')?.innerText.replace(/,/g, ''))"
        visit.until(f"{steps} > 0")
        shown = page.evaluate(steps)
        visit.until(f"{steps} > {shown}")
        os.kill(_pid(job, 1), signal.SIGKILL)
        page.wait_for_selector("#run-status >> text=failed")
        page.wait_for_selector("#overview-ending >> text=/This run (ended by SIGKILL|failed with exit code)/")
        page.click("#tab-system")
        page.wait_for_selector("#system-stats >> text=Watched for")
    assert visit.complaints_while_served == []
