"""``ringtune bench dashboard``: pages of a timeline in a real browser, on traces of 0.1, 1 and 10 million events.

The dashboard runs as users start it, in a process of its own; the browser is headless. *First paint* is from asking for
the page to the first spans on it. *Answer* is from the browser's request after a zoom or a pan to the last byte of the
answer, as the browser measures it; *drawn* is from the answer to the end of drawing. *Payload* is the answer's size.
Of the pages of analyses, first paint is to their first figures, and answers are those to one of their controls.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import orjson
import psutil
from rich.console import Console
from rich.table import Table

from ringtune import layout, runfolder
from ringtune.benchmarks.harness.progress import open_console
from ringtune.benchmarks.harness.scratch import kept_or_scratch, scratch_folder
from ringtune.benchmarks.viewer.config import LiveRun
from ringtune.benchmarks.viewer.live import LiveFigures, Look, live_table, missed_live, watch
from ringtune.benchmarks.viewer.merge import parse_count
from ringtune.benchmarks.viewer.watching import PAGES as LIVE_PAGES
from ringtune.dashboard import routes
from ringtune.dashboard.pictures import CHROMIUM_ARGUMENTS, HEIGHT, WIDTH, chromium
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.synthetic.generate_long import generate_long, schedule_of
from ringtune.timeline.units import bytes_text

RANKS = 4
PAST_TENSORS = 16
"""Tensors of a step of a job's past: 50,000 such steps of two ranks are some four million events."""
PAINTS = 4
NOTCHES = 8
"""Notches of the wheel to a zoom; one changes the scale by a tenth."""

FIRST_PAINT_MS, ANSWER_MS, PAYLOAD_BYTES = 2000, 200, 1_000_000
"""Limits, of the median, of 95 %, and of all."""
PREPARE_S = 600
_SPANS = "#timeline-graph .bars .point"
_LANES = """() => { const lanes = document.querySelector("#timeline-sketch img");
  return lanes && lanes.complete && lanes.naturalWidth > 0 && lanes.clientHeight > 0; }"""
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


@dataclass(frozen=True)
class AnalysisPage:
    """A page of analyses: its address behind a run's, what is there once it is drawn, a control, what is done to it."""

    name: str
    ready: str
    control: str
    act: Callable[[Any, int], None]


TURNS = 8
"""How often the control of a page of analyses is used."""
PAGES = (
    AnalysisPage("stragglers", "#stragglers-map .heatmaplayer image", "#stragglers-all", lambda one, _: one.click()),
    AnalysisPage(
        "communication",
        "#communication-bandwidth .scatterlayer .trace",
        "#communication-link",
        lambda one, turn: one.fill(f"{turn + 1}GB/s"),
    ),
    AnalysisPage("compare", "#compare-table tbody tr", "#compare-step", lambda one, turn: one.fill(str(10 + turn))),
)


@dataclass
class PageFigures:
    """What was measured on one trace; times in milliseconds, sizes in bytes."""

    events: int
    prepare_s: float = 0.0
    first_paint_ms: list[float] = field(default_factory=list)
    usable_ms: list[float] = field(default_factory=list)
    answer_ms: list[float] = field(default_factory=list)
    drawn_ms: list[float] = field(default_factory=list)
    payload_bytes: list[int] = field(default_factory=list)
    analyses: dict[str, PageFigures] = field(default_factory=dict)


@click.command("dashboard")
@click.option("--events", default="0.1M,1M,10M", show_default=True, help="Sizes of the traces, comma-separated.")
@click.option("--moves", type=click.IntRange(min=4), default=60, show_default=True, help="Zooms and pans of each page.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep traces and indexes here and find them again, instead of making them anew.",
)
@click.option("--live", is_flag=True, help="Watch a real job instead: the lag of its pages, and the cost of watching.")
@click.option("--past", default="2k,50k", show_default=True, help="--live: steps that the job has behind it.")
@click.option(
    "--period-ms", type=click.FloatRange(min=1), default=40, show_default=True, help="--live: time of a step."
)
@click.option("--pages", default="all", show_default=True, help="--live: pages, comma-separated.")
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=15, show_default=True, help="--live: time of each page."
)
@click.option("--require", is_flag=True, help="Exit with 1 when a limit is missed; for traces, that of 10M events.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def dashboard_command(events: str, moves: int, folder: Path | None, json_file: Path | None, **more: Any) -> None:
    """First paint, zoom latency and payload of the pages of a timeline. Needs Playwright and Chromium."""
    if more["live"]:
        pasts = [parse_count(word) for word in more["past"].split(",")]
        look = Look(_pages_of(more["pages"]), more["seconds"])
        watched = _live(pasts, more["period_ms"], look, json_file)
        _told(missed_live(watched), required=more["require"])
        return
    console, counts = open_console(), [parse_count(word) for word in events.split(",")]
    with ExitStack() as stack:
        place = stack.enter_context(kept_or_scratch(folder))
        runs = [_run_of(count, place / "runs", console) for count in counts]
        address, _ = stack.enter_context(_dashboard(place))
        measured = [_measure(address, run, PageFigures(count), moves) for count, run in zip(counts, runs, strict=True)]
    console.print(_table(measured))
    console.print(_analyses_table(measured))
    if json_file is not None:
        document = {"benchmark": "dashboard", "moves": moves, "traces": [asdict(one) for one in measured]}
        runfolder.write_json(json_file, document)
        console.print(f"record: {json_file}", soft_wrap=True)
    _told([sentence for one in measured for sentence in missed(one)], required=more["require"])


def _told(sentences: list[str], *, required: bool) -> None:
    """Say which limits were missed; that is the end where they are required."""
    for sentence in sentences:
        click.echo(sentence)
    if sentences and required:
        raise SystemExit(1)


def missed(one: PageFigures) -> list[str]:
    """Return a sentence for each limit that the timeline's page missed."""
    reached = {
        "first paint, median": (float(np.median(one.first_paint_ms)), FIRST_PAINT_MS, "ms"),
        "answers, 95 %": (float(np.quantile(one.answer_ms, 0.95)), ANSWER_MS, "ms"),
        "largest answer": (max(one.payload_bytes), PAYLOAD_BYTES, "bytes"),
    }
    return [
        f"{one.events:,} events: {name} {value:,.0f} {unit}, the limit is {limit:,} {unit}"
        for name, (value, limit, unit) in reached.items()
        if value > limit
    ]


def _pages_of(words: str) -> tuple[str, ...]:
    """Return the pages that are named, all of a name with what is shown of them.

    Raises:
        UsageError: There is none of that name.
    """
    chosen = [page for word in words.split(",") for page in LIVE_PAGES if word in ("all", page.partition("?")[0])]
    names = dict.fromkeys(page.partition("?")[0] for page in LIVE_PAGES)
    if not chosen or not {"all", *names}.issuperset(words.split(",")):
        raise UsageError(f"--pages {words}: expected all, or some of {', '.join(names)}, comma-separated")
    return tuple(dict.fromkeys(chosen))


def _live(pasts: list[int], period_ms: float, look: Look, json_file: Path | None) -> list[LiveFigures]:
    console, measured = open_console(), list[LiveFigures]()
    for past in pasts:
        with scratch_folder() as place:
            (place / "runs").mkdir()
            with _dashboard(place) as (address, process):
                run = LiveRun(past, PAST_TENSORS, period_ms / 1000)
                measured += watch(place, (address, psutil.Process(process)), run, look)
    console.print(live_table(measured))
    if json_file is not None:
        runfolder.write_json(json_file, {"benchmark": "dashboard-live", "pages": [asdict(one) for one in measured]})
        console.print(f"record: {json_file}", soft_wrap=True)
    return measured


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
def _dashboard(place: Path) -> Iterator[tuple[str, int]]:
    """Serve the runs, with indexes of their own, and yield the address and the process.

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
                    yield found[0].rstrip("/"), process.pid
                    return
            raise RingtuneError("the dashboard did not start; try `ringtune dashboard`")
        finally:
            process.terminate()


def _measure(address: str, run: Path, figures: PageFigures, moves: int) -> PageFigures:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium()), args=list(CHROMIUM_ARGUMENTS))
        figures.prepare_s = _prepared(browser, address, run)
        _timeline(browser, _page_of(address, run), figures, moves)
        twin = _twin(run)
        _prepared(browser, address, twin)
        for one in PAGES:
            both = {"a": run.name, "b": twin.name} if one.name == "compare" else {}
            route = routes.Route(one.name, "" if both else run.name, both)
            figures.analyses[one.name] = _analysis(browser, address + routes.href(route), one, figures.events)
        browser.close()
    return figures


def _page_of(address: str, run: Path) -> str:
    return address + routes.href(routes.Route("timeline", run.name))


def _prepared(browser: Any, address: str, run: Path) -> float:
    """Wait until a run's timeline is prepared, and return the seconds from asking for it to its first spans."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    begun = time.perf_counter()
    page.goto(_page_of(address, run))
    page.wait_for_selector(_SPANS, state="attached", timeout=PREPARE_S * 1000)
    took = time.perf_counter() - begun
    page.close()
    return took


def _paint(browser: Any, address: str, ready: str, figures: PageFigures, seen: str = "") -> Any:
    """Open a page with nothing in the browser's cache, not even the scripts, and return it once it is drawn.

    ``seen``: a condition that holds once what the page shows is seen, though plotly has not drawn it yet.
    """
    page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
    begun = time.perf_counter()
    page.goto(address)
    if seen:
        page.wait_for_function(seen, timeout=PREPARE_S * 1000)
        figures.first_paint_ms.append(1000 * (time.perf_counter() - begun))
    page.wait_for_selector(ready, state="attached", timeout=PREPARE_S * 1000)
    (figures.usable_ms if seen else figures.first_paint_ms).append(1000 * (time.perf_counter() - begun))
    page.wait_for_timeout(500)
    return page


def _timeline(browser: Any, address: str, figures: PageFigures, moves: int) -> None:
    for _ in range(PAINTS - 1):
        _paint(browser, address, _SPANS, figures, _LANES).close()
    page = _paint(browser, address, _SPANS, figures, _LANES)
    page.evaluate(_LISTEN)
    for number in range(moves):
        _move(page, number, figures)
    page.close()


def _twin(run: Path) -> Path:
    """Make a second run with the same timeline, which takes no room on the disk, or find it."""
    twin = run.with_name(f"{run.name}-twin")
    if not layout.is_run(twin):
        twin.mkdir(exist_ok=True)
        os.link(layout.timeline_file(run), layout.timeline_file(twin))
        layout.run_file(twin).write_bytes(layout.run_file(run).read_bytes())
    return twin


def _analysis(browser: Any, address: str, about: AnalysisPage, events: int) -> PageFigures:
    """Open a page of analyses several times, and use its control."""
    figures = PageFigures(events)
    for paint in range(PAINTS):
        page = _paint(browser, address, about.ready, figures)
        figures.payload_bytes += [int(one[1]) for one in page.evaluate(_ANSWERS, 0)]
        for turn in range(TURNS if paint == PAINTS - 1 else 0):
            since = page.evaluate("performance.now()")
            about.act(page.locator(about.control), turn)
            answers = _answers(page, since)
            figures.answer_ms += [one[0] for one in answers]
            figures.payload_bytes += [int(one[1]) for one in answers]
        page.close()
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
        "usable",
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
            f"{np.median(one.usable_ms):.0f} ms",
            str(len(one.answer_ms)),
        ]
        for values in (one.answer_ms, one.drawn_ms):
            row += [f"{np.quantile(values, q):.0f} ms" if values else "-" for q in (0.5, 0.95)]
        table.add_row(*row, bytes_text(max(one.payload_bytes, default=0)))
    return table


def _analyses_table(measured: list[PageFigures]) -> Table:
    table = Table(title="Pages of analyses", title_justify="left")
    heads = ("events", "page", "opened first", "first paint", "answer: median", "largest", "payload: largest")
    for word in heads:
        table.add_column(word, justify="right")
    for one in measured:
        for name, page in one.analyses.items():
            first, later = page.first_paint_ms[0], page.first_paint_ms[1:] or page.first_paint_ms
            answers = [f"{np.median(page.answer_ms):.0f} ms", f"{max(page.answer_ms):.0f} ms"] if page.answer_ms else []
            row = [f"{first:.0f} ms", f"{np.median(later):.0f} ms", *(answers or ["-", "-"])]
            table.add_row(f"{one.events:,}", name, *row, bytes_text(max(page.payload_bytes, default=0)))
    return table
