"""`ringtune timeline open` in a real browser: Perfetto's contract with a page of our own in its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ringtune.timeline.viewing import TraceServer
from tests.dashboard.conftest import Visit

# As Perfetto's page does: takes the address behind `#!/?url=`, may connect to nothing but that port, reads it whole.
PAGE = """<!doctype html><meta http-equiv="Content-Security-Policy"
content="default-src 'self'; script-src 'unsafe-inline'; connect-src http://127.0.0.1:{port}"><p id="said"></p><script>
const said = (text) => {{ document.getElementById("said").textContent = text; }};
fetch(new URLSearchParams(location.hash.slice(location.hash.indexOf("?"))).get("url"))
  .then((answer) => answer.text()).then((text) => said("read " + text.length + " characters"))
  .catch((error) => said("refused: " + error.message));
</script>"""


@contextmanager
def page_that_reads(port: int) -> Iterator[str]:
    """Serve the page and yield its origin; it may connect to one port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE.format(port=port).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_page_reads_the_trace_and_no_other_page_can(visit: Visit, tmp_path: Path) -> None:
    trace = tmp_path / "a trace ü.json"
    trace.write_text('{"traceEvents":[' + " " * 5_000_000 + "]}")
    # Which port the page may use must be known before its origin, and the origin before the server: swap them once.
    with TraceServer(trace, "http://127.0.0.1:1", port=0).running() as taken:
        port = int(taken.rsplit(":", 1)[1].split("/")[0])
    with page_that_reads(port) as origin, page_that_reads(port) as other:
        server = TraceServer(trace, origin, port=port)
        with server.running():
            visit.page.goto(server.link.replace(origin, other, 1))
            visit.page.wait_for_selector("text=refused: Failed to fetch")
            assert not server.fetched.is_set()
            visit.page.goto(server.link)
            visit.page.wait_for_selector(f"text=read {len(trace.read_text())} characters")
            assert server.fetched.wait(5)
