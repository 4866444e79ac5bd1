"""A stall of a real job without a timeline: what alert, webhook, metrics and Overview say while it holds, and after."""

from __future__ import annotations

import re
import sys
import urllib.request

import pytest

from ringtune import layout
from ringtune.dashboard.data import failure
from ringtune.dashboard.data.runs import read_run
from tests.conftest import needs
from tests.core.test_alerts import receiver
from tests.launch.conftest import HANG_S, Jobs, jobs, wait_for
from tests.ports import free_port

needs("ringtune._native")

__all__ = ["jobs"]

TRAIN = """
import numpy as np
import ringtune.numpy as hvd
hvd.init()
def load_batch():
    while hvd.rank() == 1 and not os.path.exists("go"):
        time.sleep(0.05)
for step in range(40):
    if step == 30:
        load_batch()
    hvd.allreduce(np.ones(4), name="grad.fc")
go_on = 1
while go_on:
    go_on = hvd.allreduce(np.array([not os.path.exists("end")], np.int32), op=hvd.Min, name="go on")[0]
hvd.shutdown()
"""


@pytest.mark.slow
def test_a_stall_is_named_everywhere_while_it_holds(jobs: Jobs) -> None:
    port, run = free_port(), jobs.folder / "runs" / "it"
    with receiver() as (url, got):
        process = jobs.start(
            *("-np", "2", "--run-dir", "runs/it", sys.executable, jobs.script(TRAIN)),
            environ={
                "RINGTUNE_METRICS_PORT": str(port),
                "RINGTUNE_ALERT_WEBHOOK": url,
                "RINGTUNE_STALL_CHECK_TIME_SECONDS": "1",
            },
        )
        wait_for(lambda: got or process.poll() is not None)
        assert process.poll() is None, process.communicate()

        def said() -> str:
            found = failure.data(read_run("it", run), None)
            return found.words() if found is not None else ""

        wait_for(lambda: "Look at" in said())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_S) as answer:
            metrics = answer.read().decode()
        report = layout.stall_file(run, 0)
        words = said()
        (jobs.folder / "go").touch()
        wait_for(lambda: not report.exists() and not said())
        (jobs.folder / "end").touch()
        _, printed = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert re.fullmatch(
        r"Rank 1 does not come to allreduce\.grad\.fc: the others waited \d+ s\. "
        r"Look at \S+ line \d+ \(load_batch\)\.",
        words,
    )
    message = (
        r"'allreduce\.grad\.fc' \(allreduce\) waits since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d for rank 1, "
        "which has not submitted it"
    )
    assert re.search(f"ringtune alert: {message}\n", printed.decode())
    [alert] = got
    assert (alert["kind"], alert["rank"], alert["waiting"][0]["missing"]) == ("stall", 1, [1])
    assert re.fullmatch(message, alert["message"])
    seconds = re.search(r'waiting_seconds\{missing_rank="1",operation="\'allreduce\.grad\.fc\' .*"\} (\S+)', metrics)
    assert seconds is not None and 1 <= float(seconds[1]) < HANG_S
