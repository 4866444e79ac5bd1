"""The dashboard in a notebook."""

from __future__ import annotations

import http.server
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ringtune.dashboard
from ringtune.dashboard import notebook
from ringtune.dashboard.server import Server
from ringtune.errors import UsageError
from tests.dashboard.conftest import Visit


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Frames that were displayed, in a kernel that is played; its servers end with it."""
    shown: list[tuple[str, dict[str, Any]]] = []
    display = ModuleType("IPython.display")
    display.IFrame = lambda url, **size: (url, size)  # type: ignore[attr-defined]
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.delenv(notebook.HUB_PREFIX, raising=False)
    servers: dict[tuple[Path, str], Server] = {}
    monkeypatch.setattr(notebook, "_SERVERS", servers)
    yield shown
    for server in servers.values():
        server.close()


def test_a_cell_shows_the_runs_in_a_frame_of_the_notebook(
    visit: Visit, frames: list[tuple[str, dict[str, Any]]], root: Path, tmp_path: Path
) -> None:
    url = ringtune.dashboard.show(root, height=500)
    assert ringtune.dashboard.show(str(root)) == url and url.startswith("http://127.0.0.1:")
    assert [size["height"] for _, size in frames] == [500, 720]
    (tmp_path / "index.html").write_text(f'<iframe src="{frames[0][0]}" width="1000" height="500"></iframe>')

    class Jupyter(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Jupyter) as jupyter:
        threading.Thread(target=jupyter.serve_forever, daemon=True).start()
        visit.page.goto(f"http://localhost:{jupyter.server_port}/index.html")
        visit.page.frame_locator("iframe").locator("text=resnet50").first.wait_for()
        jupyter.shutdown()


@pytest.mark.parametrize("base_url, path", [(None, "/user/ann/"), ("/lab/", "/lab/"), ("/", "/")])
def test_behind_the_proxy_of_jupyter_the_frame_has_a_path_and_a_token(
    frames: list[tuple[str, dict[str, Any]]],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    base_url: str | None,
    path: str,
) -> None:
    monkeypatch.setenv(notebook.HUB_PREFIX, "/user/ann/")
    url = ringtune.dashboard.show(root, base_url=base_url)
    (server,) = notebook._SERVERS.values()
    assert url.startswith(f"{path}proxy/absolute/{server.port}/?token=") and frames[0][0] == url
    # As the proxy asks: the whole path, under the name that the browser knows.
    through = {"Host": "hub.example"}
    with_token = urllib.request.Request(f"http://127.0.0.1:{server.port}{url}", headers=through)
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    assert f"{path}proxy/absolute/{server.port}/_dash-" in opener.open(with_token).read().decode()
    without = urllib.request.Request(f"http://127.0.0.1:{server.port}{server.options.prefix}", headers=through)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(without)


def test_what_cannot_be_shown_is_a_clear_message(
    frames: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        ringtune.dashboard.show(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(UsageError, match="IPython is not installed"):
        ringtune.dashboard.show(tmp_path)
    assert frames == []
