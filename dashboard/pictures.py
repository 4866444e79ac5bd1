"""Takes pictures of the pages for READMEs: ``python -m ringtune.dashboard.pictures RUNS OUT``.

Needs Playwright and a Chromium, which the dashboard itself does not.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ringtune import layout
from ringtune.dashboard import routes
from ringtune.dashboard.data.files import listing
from ringtune.dashboard.data.runs import RunsFolder
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.routes import Route
from ringtune.dashboard.server import ServeOptions, Server
from ringtune.dashboard.theme import Scheme
from ringtune.errors import RingtuneError, UsageError

CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTH, HEIGHT = 1280, 720
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


@dataclass(frozen=True)
class Picture:
    """A page to take: the file's stem, the address, and what to wait for."""

    name: str
    route: Route
    ready: str


def chromium() -> Path:
    """Return the Chromium of this machine.

    Raises:
        UsageError: There is none.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return Path(found)
    raise UsageError("No Chromium found: install it (Debian: apt install chromium) to take pictures")


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Serve the runs on a free port and yield the address."""
    server = Server(ServeOptions(root, port=0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.close()
        thread.join(timeout=5)


def wanted(folder: RunsFolder) -> list[Picture]:
    """Return the pages worth a picture: of each kind the newest run that has something to show, finished ones first."""
    drawn = ".js-plotly-plot .main-svg"
    pictures = [Picture("runs", Route("runs"), ".ag-row")]
    rows = sorted(folder.rows(), key=lambda row: row.info.status != "finished")
    for page, has, query in _PAGES:
        run = next((row.info for row in rows if has(row.info.path)), None)
        if run is not None:
            pictures.append(Picture(page, Route(page, run.id, query), f"#{page.replace('-', '')}-charts {drawn}"))
    stepped = [row.info.id for row in rows if _steps(row.info.path)]
    if len(stepped) > 1:
        both = Route("compare", query={"a": stepped[0], "b": stepped[1]})
        pictures.append(Picture("compare", both, f"#compare-spread {drawn}"))
    return pictures


def _steps(run: Path) -> bool:
    return bool(listing(run, layout.step_logs(run), ".jsonl"))


def _spans(run: Path) -> bool:
    return bool(trace.sources(run))


def _sampled(run: Path) -> bool:
    return bool(listing(run, layout.sample_logs(run), ".jsonl"))


def _journal(run: Path) -> bool:
    return layout.tuning_journal(run).is_file()


def _records(run: Path) -> bool:
    return bool(listing(run, layout.scaling_folder(run), ".json"))


_PAGES: tuple[tuple[str, Callable[[Path], bool], dict[str, str]], ...] = (
    ("overview", _steps, {}),
    ("timeline", _spans, {}),
    ("stragglers", _spans, {}),
    ("communication", _spans, {}),
    ("tuning", _journal, {}),
    ("system", _sampled, {}),
    ("what-if", _spans, {"ranks": "64", "slots": "8", "gbit": "25"}),
    ("scaling", _records, {}),
)
"""Pages of a run: the name, whether a run has something to show there, and what the address asks for."""


def take(root: Path, out: Path, schemes: Sequence[Scheme] = SCHEMES) -> list[Path]:
    """Take a picture of every page in every scheme and return the files ``<page>-<scheme>.png``."""
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    pictures, written = wanted(RunsFolder(root)), []
    with serving(root) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium()), args=list(CHROMIUM_ARGUMENTS))
        for scheme in schemes:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            for picture in pictures:
                path = out / f"{picture.name}-{scheme}.png"
                _shoot(page, url.rstrip("/") + routes.href(picture.route), picture, path)
                written.append(path)
            page.close()
        browser.close()
    return written


def _shoot(page: Any, address: str, picture: Picture, path: Path) -> None:
    page.goto(address)
    page.wait_for_selector(picture.ready, state="visible")
    if picture.route.page == "timeline":
        page.click("#timeline-start")
    settled(page)
    page.screenshot(path=str(path))


def settled(page: Any, seconds: int = 60) -> None:
    """Wait until a page looks the same for a second: all figures drawn, fonts there, every answer in.

    Raises:
        RingtuneError: It goes on changing.
    """
    before, same = b"", 0
    for _ in range(2 * seconds):
        page.wait_for_timeout(500)
        now = page.screenshot()
        same = same + 1 if now == before else 0
        if same == 2:
            return
        before = now
    raise RingtuneError(f"{page.url} still changes after {seconds} s")


@click.command()
@click.argument("runs", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def main(runs: Path, out: Path) -> None:
    """Take pictures of the pages over RUNS into the folder OUT."""
    for path in take(runs, out):
        click.echo(path)


if __name__ == "__main__":
    main()
