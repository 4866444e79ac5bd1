"""Pages and metrics of a job show none of its secrets: read as a browser and Prometheus do, while it runs and after."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from ringtune.dashboard import routes
from ringtune.dashboard.app import NEWS, create_app
from ringtune.dashboard.page_registry import PAGES, TABS
from ringtune.dashboard.polling import ROUTE
from ringtune.dashboard.routes import Route
from tests.conftest import needs
from tests.launch.conftest import HANG_S, Jobs, jobs, wait_for
from tests.ports import free_port

needs("ringtune._native")

__all__ = ["jobs"]

PASSWORD, HOOK = "swordfish", "who-knows-this-may-post"
STUDY = f"sqlite:///file:study.db?uri=true&password={PASSWORD}"
TRAIN = """
import json
import numpy as np
import ringtune.numpy as hvd
from ringtune.session import Session
hvd.init()
own = [os.environ[name] for name in ("RINGTUNE_SECRET", "RINGTUNE_STORE")]
steps, go_on = 0, 1
while go_on:
    for name in "abc":
        hvd.allreduce(np.ones(1000, np.float32), name=name)
    Session.current().end_step()
    steps += 1
    if rank == 0 and steps == 20:
        open("own.part", "w").write(json.dumps(own))
        os.rename("own.part", "own")
    go_on = hvd.allreduce(np.array([not os.path.exists("go")], np.int32), op=hvd.Min, name="go on")[0]
hvd.shutdown()
"""


def texts_of(client: Any, run: str) -> Iterator[tuple[str, str]]:
    """Yield address and text of everything that a browser gets for the pages of a run."""
    callbacks = client.get("/_dash-dependencies").get_json()
    [show] = [one for one in callbacks if one["output"].startswith("..page.children.")]
    parts = [part.rpartition(".") for part in show["output"].strip(".").split("...")]
    outputs = [{"id": name, "property": prop} for name, _, prop in parts]
    yield "layout", client.get("/_dash-layout").get_data(as_text=True)
    pages = [Route(page.name) for page in PAGES if page.name not in TABS]
    for route in (*pages, *(Route(tab, run) for tab in TABS)):
        address = routes.href(route)
        path = address.partition("?")[0]
        got = client.get(address, environ_overrides={"REQUEST_URI": path})
        inputs = [{"id": "url", "property": one, "value": value} for one, value in (("pathname", path), ("search", ""))]
        asked = {"output": show["output"], "outputs": outputs, "inputs": inputs, "changedPropIds": ["url.pathname"]}
        shown = client.post("/_dash-update-component", json=asked)
        polled = client.post(f"/{ROUTE}", json={"path": path, "known": None, "drawn": None})
        assert (got.status_code, shown.status_code) == (200, 200), address
        assert polled.status_code == 200 or route.page not in NEWS, address
        for kind, answer in (("html", got), ("page", shown), ("poll", polled)):
            yield f"{kind} of {address}", answer.get_data(as_text=True)


@pytest.mark.slow
def test_pages_and_metrics_show_no_secret_of_a_job(jobs: Jobs) -> None:
    port = free_port()
    process = jobs.start(
        *("-np", "2", "--run-dir", "runs/it", "--logs", "--timeline", "trace.json", "--autotune"),
        *(sys.executable, jobs.script(TRAIN)),
        environ={
            "RINGTUNE_METRICS_PORT": str(port),
            "RINGTUNE_AUTOTUNE_STUDY": STUDY,
            "RINGTUNE_ALERT_WEBHOOK": f"http://127.0.0.1:9/{HOOK}",
        },
    )
    own, study = jobs.folder / "own", jobs.folder / "study.db"
    wait_for(lambda: (own.exists() and study.exists()) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    client = create_app(jobs.folder / "runs").server.test_client()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_S) as answer:
        found = {"metrics": answer.read().decode()}
    assert 'ringtune_batches_total{rank="0"}' in found["metrics"]
    found |= {f"live {where}": text for where, text in texts_of(client, "it")}
    (jobs.folder / "go").touch()
    stdout, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, stderr
    found |= texts_of(client, "it")
    found["output"] = (stdout + stderr).decode()
    for path in (jobs.folder / "runs").rglob("*"):
        if path.is_file():
            found[str(path)] = path.read_bytes().decode("utf-8", "replace")
    assert sum("runs/it" in where or "it/" in where for where in found) > 2 * len(TABS)
    words = re.compile("|".join(map(re.escape, (PASSWORD, HOOK, *json.loads(own.read_text())))))
    assert study.exists(), "the study is kept where the address with the password leads"
    assert not [(where, shown[0]) for where, text in found.items() if (shown := words.search(text))]
