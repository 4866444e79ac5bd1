"""Viewing a trace: serves one file to Perfetto's web page from this machine, or shows it in the dashboard.

Perfetto's page runs in the browser and reads the trace from 127.0.0.1 by its deep link ``<page>/#!/?url=<file>``;
nothing is uploaded. Its page may read only from port 9001, and only when the answer allows its origin (CORS).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import orjson

from ringtune import layout
from ringtune.errors import RingtuneError, UsageError

PERFETTO_PORT = 9001
_COPY_BYTES = 1 << 20
LENT_BYTES = 32 << 20
"""From this size on a trace is not written again to be shown."""


class TraceServer:
    """Serves one trace file on 127.0.0.1 until closed; borrows the file, which must stay.

    Attributes:
        url: Address of the trace.
        link: Perfetto's page with the trace as its deep link.
        fetched: Set once that page has the whole trace.
    """

    def __init__(self, trace: Path, ui: str, port: int = PERFETTO_PORT) -> None:
        """Bind the port.

        Args:
            trace: File to serve, as it is.
            ui: Address of Perfetto's page, ``https://HOST[:PORT][/PATH]``.
            port: Port to listen on; 0 takes any free one.

        Raises:
            UsageError: The address is none.
            RingtuneError: The file is not there, or the port is taken.
        """
        self._origin = origin_of(ui)
        if not trace.is_file():
            raise RingtuneError(f"{trace}: no file; merge the run first (`ringtune timeline merge`)")
        self.fetched = threading.Event()
        handler = _handler(trace, self._origin, self.fetched)
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except OSError as error:
            raise RingtuneError(
                f"port {port} on 127.0.0.1 cannot be used ({error.strerror}); "
                "end the program that holds it, or choose --port"
            ) from error
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/{quote(trace.name)}"
        self.link = f"{ui.rstrip('/')}/#!/?url={self.url}"

    def run(self) -> None:
        """Serve until `close` is called or the process is interrupted; blocks."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop and free the port."""
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve in a thread; yields the trace's address."""
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        try:
            yield self.url
        finally:
            self.close()
            thread.join(timeout=5)


def origin_of(ui: str) -> str:
    """Return the origin (scheme, host, port) of a page's address.

    Raises:
        UsageError: It is no web address.
    """
    parts = urlsplit(ui)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--ui {ui}: expected the address of Perfetto's page, https://HOST")
    return f"{parts.scheme}://{parts.netloc}"


def _handler(trace: Path, origin: str, fetched: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_OPTIONS(self) -> None:
            self.send_response(204)
            self._allow()
            self.send_header("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS")
            # Browsers let pages of the internet reach this machine's own network only when the answer allows it.
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.end_headers()

        def _answer(self, with_body: bool) -> None:
            if not self._from_here():
                self.send_error(403, "the trace is for one page, under this address")
                return
            if unquote(urlsplit(self.path).path) != f"/{trace.name}":
                self.send_error(404, "only the trace is served here")
                return
            try:
                file = open(trace, "rb")  # noqa: SIM115  (closed below, after the headers)
            except OSError:
                self.send_error(404, "the trace is gone")
                return
            with file:
                self.send_response(200)
                self._allow()
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(trace.stat().st_size))
                self.send_header("Cache-Control", "no-cache")
                self.end_headers()
                if with_body:
                    shutil.copyfileobj(file, self.wfile, _COPY_BYTES)
                    if self.headers.get("Origin") == origin:
                        fetched.set()

        def _from_here(self) -> bool:
            """Whether a request names this machine (DNS rebinding) and comes from that page or from a program."""
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            return name in ("127.0.0.1", "localhost") and self.headers.get("Origin", origin) == origin

        def _allow(self) -> None:
            self.send_header("Access-Control-Allow-Origin", origin)

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent: the command prints what the user needs."""

    return Handler


def show_in_dashboard(trace: Path, port: int) -> int:
    """Show a trace in the dashboard's own viewer, which needs no network; blocks, returns its exit code.

    Raises:
        RingtuneError: The file is not there.
    """
    if not trace.exists():
        raise RingtuneError(f"{trace}: not there; name a trace file or a run folder")
    # Ended by a signal, the dashboard and its folder go too: `subprocess.run` and `TemporaryDirectory` see to it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    run = next((folder for folder in (trace, *trace.resolve().parents) if layout.is_run(folder)), None)
    if run is not None:
        return _dashboard(run, port)
    with tempfile.TemporaryDirectory(prefix="ringtune-") as folder:
        return _dashboard(as_run(trace, Path(folder)), port)


def as_run(trace: Path, folder: Path) -> Path:
    """Make a run folder around a trace that lies elsewhere: the dashboard shows runs. Returns the run.

    Raises:
        TraceIoError: It is no trace (of large files the dashboard says so).
    """
    from ringtune.timeline.inputs import load
    from ringtune.timeline.merging.merged_file import write_merged

    run = folder / layout.run_name(trace.name.split(".")[0] or "trace", 0)
    run.mkdir(parents=True)
    if trace.is_file() and trace.stat().st_size >= LENT_BYTES:
        _lend(trace, layout.timeline_file(run))
    else:
        write_merged(layout.timeline_file(run), load(trace))
    document = {"name": trace.name, "status": "finished", "labels": {"timeline": str(trace)}}
    layout.run_file(run).write_bytes(orjson.dumps(document))
    return run


def _lend(file: Path, target: Path) -> None:
    """Give a file a second name, a copy where that is not possible: a link out of a run would not be followed."""
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)


def _dashboard(run: Path, port: int) -> int:
    # As a command of its own: this room does not know the dashboard.
    command = [sys.executable, "-m", "ringtune.cli", "dashboard", str(run), "--port", str(port), "--page", "timeline"]
    return subprocess.run(command, check=False).returncode
