from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune.dashboard import cli
from ringtune.dashboard.server import ServeOptions, Server, check, is_loopback
from ringtune.errors import UsageError

TOKEN = "a-long-enough-token"


def get(url: str, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    host = url.split("//")[1].split("/")[0]
    connection = http.client.HTTPConnection(host, timeout=120)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


@pytest.fixture(scope="module")
def guarded(root: Path) -> Iterator[str]:
    server = Server(ServeOptions(root, port=0, token=TOKEN))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server.url
    server.close()
    thread.join(5)


def test_pages_forbid_everything_from_elsewhere(url: str) -> None:
    status, headers, body = get(url, "/")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "http" not in policy.replace("https", "http").replace("'self'", "")
    assert "unsafe-inline" not in policy.split("style-src")[0] and "unsafe-eval" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"https://" not in body and b"cdn" not in body


def test_another_host_name_is_refused(url: str) -> None:
    assert get(url, "/", Host="evil.example")[0] == 421
    assert get(url, "/", Host="localhost")[0] == 200


@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-dependencies", "/assets/ringtune.css", "/run/x"])
def test_every_request_needs_the_token(guarded: str, path: str) -> None:
    assert get(guarded, path)[0] == 401
    assert get(guarded, path, Authorization="Bearer wrong")[0] == 401
    assert get(guarded, path, Authorization=f"Bearer {TOKEN}")[0] == (404 if path == "/run/x" else 200)
    assert get(guarded, path, Cookie="ringtune-0=wrong")[0] == 401


def test_the_token_of_the_address_becomes_a_cookie(guarded: str) -> None:
    status, headers, _ = get(guarded, f"/run/x?q=1&token={TOKEN}")
    assert (status, headers["Location"]) == (302, "/run/x?q=1")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert get(guarded, "/", Cookie=cookie.split(";")[0])[0] == 200


def test_a_missing_folder_and_a_file_are_clear_messages(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        check(ServeOptions(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not a folder of runs"):
        check(ServeOptions(tmp_path / "file"))


def test_a_busy_port_is_a_clear_message(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(cli.dashboard, [str(tmp_path), "--port", str(port)])
        assert isinstance(result.exception, UsageError)
        assert str(result.exception) == (
            f"Port 127.0.0.1:{port} is in use. Give another one with --port, or --port 0 for any that is free"
        )


def test_beyond_loopback_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs --token"):
        Server(ServeOptions(tmp_path, host="0.0.0.0", port=0))
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "host")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.dashboard, [str(tmp_path), "--token", "abc"])
    assert isinstance(result.exception, UsageError)


def test_an_address_of_another_machine_is_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no address of this machine"):
        Server(ServeOptions(tmp_path, host="192.0.2.1", port=0, token=TOKEN))


def test_the_command_prints_the_address_with_a_token_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "run", lambda self: None)
    result = CliRunner().invoke(cli.dashboard, [str(tmp_path), "--host", "0.0.0.0", "--port", "0"])
    assert result.exit_code == 0, result.output
    assert "token=" in result.output and "unencrypted" in result.output


def test_a_prefix_moves_all_addresses(root: Path) -> None:
    server = Server(ServeOptions(root, port=0, prefix="/tools/rt/"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        status, _, body = get(server.url, "/tools/rt/")
        assert status == 200 and b'"/tools/rt/_dash-component-suites/' in body
        assert get(server.url, "/tools/rt/_dash-layout")[0] == 200
    finally:
        server.close()
        thread.join(5)


def test_a_quiet_page_costs_an_empty_answer(url: str) -> None:
    """The poll of a page on which nothing changed is answered without content."""
    host = url.split("//")[1]

    def poll(stamp: str | None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(host, timeout=120)
        body = {"path": "/", "known": stamp, "drawn": None}
        connection.request("POST", "/_poll", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    status, body = poll(None)
    found = json.loads(body)
    assert status == 200 and found["news"]["path"] == "/"
    assert poll(found["stamp"]) == (204, b"")


@pytest.mark.parametrize(
    "question", [b"", b"{", b"[]", b'{"path": 7}', b'{"path": "/", "drawn": "' + b"x" * 2**20 + b'"}']
)
def test_a_poll_that_makes_no_sense_is_refused(url: str, question: bytes) -> None:
    connection = http.client.HTTPConnection(url.split("//")[1], timeout=120)
    connection.request("POST", "/_poll", question, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (400, b"expected an object with path, known and drawn\n")


def test_a_page_is_of_one_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.dashboard, [str(tmp_path), "--port", "0", "--page", "timeline"])
    assert "--page timeline: expected a run folder for RUNS" in str(done.exception)
