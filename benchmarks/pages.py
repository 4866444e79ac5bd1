"""``ringtune bench dashboard``: the timeline's page in a real browser, on traces of 0.1, 1 and 10 million events.

The dashboard runs as users start it, in a process of its own; the browser is headless. *First paint* is from asking for
the page to the first spans on it. *Answer* is from the browser's request after a zoom or a pan to the last byte of the
answer, as the browser measures it; *drawn* is from the answer to the end of drawing. *Payload* is the answer's size.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from ringtune import layout, runfolder
from ringtune.benchmarks.progress import open_console
from ringtune.benchmarks.scratch import scratch_folder
from ringtune.benchmarks.sizes import format_bytes
from ringtune.benchmarks.traces import parse_count
from ringtune.dashboard import routes
from ringtune.dashboard.pictures import CHROMIUM_ARGUMENTS, HEIGHT, WIDTH, chromium
from ringtune.errors import RingtuneError
from ringtune.timeline.generate_long import generate_long, schedule_of
from ringtune.timeline.merge import merge

RANKS = 4
PAINTS = 4
NOTCHES = 8
"""Notches of the wheel to a zoom; one changes the scale by a tenth."""

PREPARE_S = 600
_SPANS = "#timeline-graph .bars .point"
_LISTEN = """
() => {
  const plot = document.querySelector("#timeline-graph .js-plotly-plot");
  window.drawn = 0;
  plot.on("plotly_afterplot", () => { window.drawn = performance.now(); });
  performance.setResourceTimingBufferSize(100000);
}
"""
_ANSWERS = """
(since) => performance.getEntriesByType("resource")
  .filter((one) => one.name.includes("_dash-update-component") && one.startTime >= since && one.decodedBodySize > 2000)
  .map((one) => [one.duration, one.decodedBodySize, one.responseEnd])
"""


@dataclass
class PageFigures:
    """What was measured on one trace; times in milliseconds, sizes in bytes."""

    events: int
    prepare_s: float = 0.0
    first_paint_ms: list[float] = field(default_factory=list)
    answer_ms: list[float] = field(default_factory=list)
    drawn_ms: list[float] = field(default_factory=list)
    payload_bytes: list[int] = field(default_factory=list)


@click.command("dashboard")
@click.option("--events", default="0.1M,1M,10M", show_default=True, help="Sizes of the traces, comma-separated.")
@click.option("--moves", type=click.IntRange(min=4), default=60, show_default=True, help="Zooms and pans of each.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep traces and indexes here and find them again, instead of making them anew.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def dashboard_command(events: str, moves: int, folder: Path | None, json_file: Path | None) -> None:
    """First paint, zoom latency and payload of the timeline's page. Needs Playwright and Chromium."""
    console, counts = open_console(), [parse_count(word) for word in events.split(",")]
    with ExitStack() as stack:
        place = folder or stack.enter_context(scratch_folder())
        runs = [_run_of(count, place / "runs", console) for count in counts]
        address = stack.enter_context(_dashboard(place))
        measured = [_measure(address, run, PageFigures(count), moves) for count, run in zip(counts, runs, strict=True)]
    console.print(_table(measured))
    if json_file is not None:
        document = {"benchmark": "dashboard", "moves": moves, "traces": [asdict(one) for one in measured]}
        runfolder.write_json(json_file, document)
        console.print(f"record: {json_file}", soft_wrap=True)


def _run_of(events: int, runs: Path, console: Console) -> Path:
    """Make a run with a merged trace of so many events, or find it."""
    run = runs / f"events-{events}-20260101-000000"
    if not layout.is_run(run):
        console.print(f"making {events:,} events", highlight=False)
        job = generate_long(*schedule_of(events, RANKS))
        with TemporaryDirectory(prefix="ringtune-parts-", dir=runs.parent) as parts:
            run.mkdir(parents=True)
            merge(job.write(parts), layout.timeline_file(run))
        document = {
            "format": 1,
            "name": f"{events} events",
            "status": "finished",
            "size": RANKS,
            "command": ["generated"],
        }
        layout.run_file(run).write_bytes(orjson.dumps(document))
    return run


@contextmanager
def _dashboard(place: Path) -> Iterator[str]:
    """Serve the runs, with indexes of their own, and yield the address.

    Raises:
        RingtuneError: It did not start.
    """
    command = [sys.executable, "-m", "ringtune.cli", "dashboard", str(place / "runs"), "--port", "0"]
    environ = {**os.environ, "XDG_CACHE_HOME": str(place.resolve() / "cache")}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"http://[\w.:\[\]]+", line):
                    yield found[0].rstrip("/")
                    return
            raise RingtuneError("the dashboard did not start; try `ringtune dashboard`")
        finally:
            process.terminate()


def _measure(address: str, run: Path, figures: PageFigures, moves: int) -> PageFigures:
    from playwright.sync_api import sync_playwright

    page_of_run = address + routes.href(routes.Route("timeline", run.name))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium()), args=list(CHROMIUM_ARGUMENTS))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        begun = time.perf_counter()
        page.goto(page_of_run)
        page.wait_for_selector(_SPANS, state="attached", timeout=PREPARE_S * 1000)
        figures.prepare_s = time.perf_counter() - begun
        for _ in range(PAINTS):
            page.close()
            # A context of its own: nothing is in the browser's cache, not even the scripts.
            page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
            begun = time.perf_counter()
            page.goto(page_of_run)
            page.wait_for_selector(_SPANS, state="attached")
            figures.first_paint_ms.append(1000 * (time.perf_counter() - begun))
        page.wait_for_timeout(500)
        page.evaluate(_LISTEN)
        for number in range(moves):
            _move(page, number, figures)
        browser.close()
    return figures


def _move(page: Any, number: int, figures: PageFigures) -> None:
    """Zoom or pan once, and note what the answer cost: in and out over all lengths, to both sides."""
    box = page.locator("#timeline-graph .nsewdrag").first.bounding_box()
    at = (box["x"] + box["width"] * (0.3 + 0.4 * (number * 0.37 % 1)), min(box["y"] + box["height"] / 2, HEIGHT - 60))
    page.mouse.move(*at)
    since = page.evaluate("performance.now()")
    if number % 4 == 3:
        page.mouse.down()
        page.mouse.move(at[0] + (200 if number % 8 == 3 else -200), at[1], steps=4)
        page.mouse.up()
    else:
        for _ in range(NOTCHES):
            page.mouse.wheel(0, -160 if number // 16 % 2 == 0 else 160)
    answers = _answers(page, since)
    figures.answer_ms += [one[0] for one in answers]
    figures.payload_bytes += [int(one[1]) for one in answers]
    if answers and (drawn := page.evaluate("window.drawn") - answers[-1][2]) > 0:
        figures.drawn_ms.append(drawn)


def _answers(page: Any, since: float) -> list[list[float]]:
    """All answers (duration, size, end) to what was done at a moment; none where there was nothing to ask."""
    deadline, found = time.perf_counter() + 10, list[list[float]]()
    while time.perf_counter() < deadline and not found:
        page.wait_for_timeout(20)
        found = page.evaluate(_ANSWERS, since)
    page.wait_for_timeout(300)  # the end of drawing, and the answer to the last notch of the wheel
    answers: list[list[float]] = page.evaluate(_ANSWERS, since)
    return answers


def _table(measured: list[PageFigures]) -> Table:
    table = Table(title="The timeline's page", title_justify="left")
    heads = (
        "events",
        "prepared once",
        "first paint",
        "answers",
        "answer: median",
        "p95",
        "drawn: median",
        "p95",
        "payload: largest",
    )
    for word in heads:
        table.add_column(word, justify="right")
    for one in measured:
        row = [
            f"{one.events:,}",
            f"{one.prepare_s:.1f} s",
            f"{np.median(one.first_paint_ms):.0f} ms",
            str(len(one.answer_ms)),
        ]
        for values in (one.answer_ms, one.drawn_ms):
            row += [f"{np.quantile(values, q):.0f} ms" if values else "-" for q in (0.5, 0.95)]
        table.add_row(*row, format_bytes(max(one.payload_bytes, default=0)))
    return table
