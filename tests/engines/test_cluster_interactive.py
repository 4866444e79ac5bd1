"""`%load_ext ringtune` and `ringtune.interactive.Ranks`: ranks that stay in their job between cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringtune.errors import InvalidArgument, RingtuneError
from tests.engines import cases

ipyparallel = pytest.importorskip(
    "ipyparallel", reason="ipyparallel is not installed; `make test-engines` makes an environment"
)

from ringtune.interactive import Ranks  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import os

    os.environ["IPYTHONDIR"] = str(tmp_path_factory.mktemp("ipython"))
    with ipyparallel.Cluster(n=2, log_level=40) as found:
        yield found


def test_a_session_stays_open_between_calls(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def join() -> tuple[int, int]:
        import ringtune.torch as hvd

        hvd.init()
        return hvd.rank(), hvd.size()

    def add(value: float) -> float:
        import torch

        import ringtune.torch as hvd

        return float(hvd.allreduce(torch.tensor([value + hvd.rank()]), op=hvd.Sum, name="add"))

    with Ranks(client) as ranks:
        assert ranks.call(join) == [(0, 2), (1, 2)]
        assert ranks.call(add, 1.0) == [3.0, 3.0]
        assert ranks.call(add, 2.0) == [5.0, 5.0]
        html = ranks.report(tmp_path / "report.html")
        assert "<html" in html and "ALLREDUCE" in html.upper()
        assert ranks.call(add, 3.0) == [7.0, 7.0]  # it goes on, in the same session, and records
        run = ranks.run_folder()
        assert run is not None
    assert (run / "trace.json").exists()
    assert client[:].apply_sync(cases.place)[0]["RINGTUNE_RANK"] is None


def test_training_reaches_the_loss_of_one_process(client: Any, alone: float) -> None:
    with Ranks(client, timeline=False) as ranks:
        found = ranks.call(cases.train)
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)


def test_a_killed_engine_is_named_and_new_ranks_go_on_from_the_last_commit(
    tmp_path: Path, alone: float, noticed: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "kept").mkdir(mode=0o700)
    kept = {"RINGTUNE_ELASTIC_STATE": str(tmp_path / "kept")}
    with ipyparallel.Cluster(n=2, log_level=40) as own:
        with Ranks(own, kept, timeline=False) as ranks, pytest.raises(ipyparallel.CompositeError) as caught:
            ranks.call(cases.train_elastically, str(tmp_path), 7)
        assert "PeerLost: rank 1" in str(caught.value) and "Engine 1 died" in str(caught.value)
        noticed(tmp_path)
        own.cluster.restart_engines_sync()
        own.wait_for_engines(2)
        with Ranks(own, kept, timeline=False) as ranks:
            found = ranks.call(cases.train_elastically, str(tmp_path), 7)
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)
    assert (tmp_path / "starts").read_text().splitlines() == ["0 2", "7 2"]


def test_no_report_before_a_session(client: Any, tmp_path: Path) -> None:
    with Ranks(client, timeline=False) as ranks, pytest.raises(RingtuneError, match="there is no timeline"):
        ranks.report(tmp_path / "report.html")


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidArgument, match="expected at least 1"):
        Ranks(0)
    with pytest.raises(InvalidArgument, match="expected a number of engines"):
        Ranks("two")


def test_the_command_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    settings = Config()
    settings.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=settings)  # the one that ipyparallel's %%px looks for

    def cell(text: str) -> Any:
        capsys.readouterr()
        done = shell.run_cell(text)
        assert done.success, text
        return done.result, capsys.readouterr().out

    cell("%load_ext ringtune")
    try:
        use(cell)
    finally:
        cell("%unload_ext ringtune")
        InteractiveShell.clear_instance()


def use(cell: Any) -> None:
    assert "no ranks run" in cell("%ringtune timeline")[1]
    assert "how many ranks?" in cell("%ringtune start")[1]
    assert "%ringtune start N" in cell("%ringtune")[1]
    assert "2 ranks" in cell("%ringtune start 2")[1]
    assert "2 ranks run already" in cell("%ringtune start 2")[1]
    assert "no session yet" in cell("%ringtune status")[1]
    cell("%%px\nimport torch, ringtune.torch as hvd\nhvd.init()\nmine = torch.tensor([hvd.rank() + 1.0])")
    assert "3." in cell("%%px\nprint(hvd.allreduce(mine, op=hvd.Sum, name='sum'))")[1]
    frame, _ = cell("%ringtune timeline")
    assert "srcdoc" in frame._repr_html_()
    assert "recorded in" in cell("%ringtune status")[1]
    cell("%ringtune stop")
    assert "no ranks run" in cell("%ringtune stop")[1]
