"""Serving a trace to Perfetto's page: on this machine only, that page only, that file only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ringtune import layout
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline import viewing
from ringtune.timeline.inputs import load
from ringtune.timeline.runs.run import Run
from ringtune.timeline.viewing import TraceServer, as_run, origin_of
from tests.timeline.helpers import generate, merged, rows

UI = "https://ui.example:8443/v1"


def answer(address: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(address, method=method, headers={"Origin": "https://ui.example:8443"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return response.status, dict(response.headers), response.read()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "my trace.json"
    path.write_bytes(b'{"traceEvents":[]}')
    return path


def test_the_trace_is_served_to_that_page(trace: Path) -> None:
    server = TraceServer(trace, UI, port=0)
    assert server.link == f"{UI}/#!/?url={server.url}"
    assert server.url.startswith("http://127.0.0.1:")
    with server.running() as url:
        status, headers, body = answer(url)
        assert (status, body) == (200, trace.read_bytes())
        assert headers["Access-Control-Allow-Origin"] == "https://ui.example:8443"
        assert headers["Content-Length"] == str(len(body))
        assert answer(url, "HEAD")[2] == b""
        status, headers, _ = answer(url, "OPTIONS")
        assert (status, headers["Access-Control-Allow-Private-Network"]) == (204, "true")


def test_nothing_else_is_served(trace: Path) -> None:
    (trace.parent / "secret").write_text("secret")
    server = TraceServer(trace, UI, port=0)
    with server.running() as url:
        root = url.rsplit("/", 1)[0]
        for path in ("/", "/secret", "/../secret", "/%2e%2e/secret", "/my%20trace.json/"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                answer(root + path)
        trace.unlink()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            answer(url)


def test_only_that_page_under_this_address_is_answered(trace: Path) -> None:
    server = TraceServer(trace, UI, port=0)
    with server.running() as url:
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example:9001"}):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=120)
        assert not server.fetched.is_set()
        with urllib.request.urlopen(url, timeout=120) as response:  # a program, not a page
            assert response.read() == trace.read_bytes()
        assert not server.fetched.is_set()
        answer(url, "HEAD")
        assert not server.fetched.is_set()
        answer(url)
        assert server.fetched.wait(120)


def test_the_command_ends_when_the_page_has_the_trace(trace: Path) -> None:
    command = [sys.executable, "-m", "ringtune.cli", "timeline", "open", str(trace), "--ui", UI, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert answer(address)[2] == trace.read_bytes()
        assert process.wait(timeout=120) == 0
        assert "The page has the trace." in process.stdout.read()


def test_bad_input_is_refused(trace: Path) -> None:
    with pytest.raises(RingtuneError, match="no file; merge the run first"):
        TraceServer(trace.with_name("none.json"), UI, port=0)
    for address in ("ui.example", "ftp://ui.example", "https://", ""):
        with pytest.raises(UsageError, match="expected the address"):
            origin_of(address)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RingtuneError, match="cannot be used"):
        TraceServer(trace, UI, port=taken.getsockname()[1])


def test_a_lonely_file_becomes_a_run_for_the_dashboard(tmp_path: Path) -> None:
    job = generate()
    trace = merged(job, tmp_path, "lonely.json")
    run = as_run(tmp_path / "lonely.json", tmp_path / "shown")
    assert layout.is_run(run)
    assert not Run(run).problems
    assert rows(load(run).spans) == rows(trace.spans)


def test_a_large_file_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = merged(generate(), tmp_path, "large.json")
    monkeypatch.setattr(viewing, "LENT_BYTES", 1)
    run = as_run(tmp_path / "large.json", tmp_path / "shown")
    shown = layout.timeline_file(run)
    assert (shown.is_symlink(), shown.stat().st_ino) == (False, (tmp_path / "large.json").stat().st_ino)
    assert rows(load(run).spans) == rows(trace.spans)


def test_ended_by_a_signal_nothing_stays(tmp_path: Path) -> None:
    merged(generate(), tmp_path, "trace.json")
    place = tmp_path / "temporary"
    place.mkdir()
    command = [sys.executable, "-m", "ringtune.cli", "timeline", "open", str(tmp_path / "trace.json"), "--port", "0"]
    environ = {**os.environ, "TMPDIR": str(place), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        address = next(line.strip() for line in process.stdout if "http://" in line)
        assert address.endswith("/run/trace-19700101-000000/timeline")
        with urllib.request.urlopen(address, timeout=120) as response:
            assert response.status == 200
        process.terminate()
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=120)
    assert list(place.iterdir()) == []
