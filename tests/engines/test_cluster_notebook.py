"""`%ringtune` in a notebook that a kernel of Jupyter's runs: ranks, timeline and dashboard between its cells."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed; `make test-engines` makes an environment")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipyparallel")
pytest.importorskip("ipykernel")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOIN = """\
%%px
import torch
import ringtune.torch as hvd
hvd.init()
model = torch.nn.Linear(8, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
"""
TRAIN = """\
%%px
for _ in range(10):
    optimizer.zero_grad()
    loss = (model(torch.ones(4, 8) * (hvd.rank() + 1)) ** 2).mean()
    loss.backward()
    optimizer.step()
print("loss", float(hvd.allreduce(loss.detach(), name="loss")))
"""

Cell = Callable[[str], list[Any]]


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    """Return a function that runs a cell and returns its outputs."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.v4.new_notebook()
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )

    def run(source: str) -> list[Any]:
        notebook.cells.append(nbformat.v4.new_code_cell(source))
        done = client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1)
        outputs: list[Any] = done.outputs
        return outputs

    with client.setup_kernel():
        run("%load_ext ringtune")
        yield run
        run("%unload_ext ringtune")


def said(outputs: list[Any]) -> str:
    """Return what a cell prints; that of engines comes as something to display."""
    return "".join(one.get("text", "") or str(one.get("data", {}).get("text/plain", "")) for one in outputs)


def frame(outputs: list[Any]) -> str:
    """Return the HTML that a cell shows."""
    return next(str(one["data"]["text/html"]) for one in outputs if "text/html" in one.get("data", {}))


def test_a_training_is_looked_at_between_its_cells(cell: Cell) -> None:
    assert "2 ranks" in said(cell("%ringtune start 2"))
    assert "nothing is recorded yet" in said(cell("%ringtune dashboard"))
    cell(JOIN)
    first = said(cell(TRAIN))
    assert first.count("loss") == 2 and len(set(re.findall(r"loss (\S+)", first))) == 1
    timeline = frame(cell("%ringtune timeline"))
    assert timeline.lstrip().startswith("<iframe") and 'srcdoc="' in timeline and "ALLREDUCE" in timeline.upper()
    # The session is open still, and what it goes on with is in the next picture.
    assert said(cell(TRAIN)).count("loss") == 2
    dashboard = frame(cell("%ringtune dashboard"))
    address = re.search(r'src="(http://[^"]+)"', dashboard)
    assert address is not None, dashboard
    with urllib.request.urlopen(address[1], timeout=60) as answer:
        assert answer.status == 200 and b"_dash" in answer.read()
    assert said(cell("%ringtune stop")) == ""
    assert "no ranks run" in said(cell("%ringtune status"))
