"""Makes the walks of `timeline/README.md` and of the guide for DDP anew: ``python -m ringtune.benchmarks.walk``.

Trains on two ranks, once with a slow data loader on one of them and once without, runs the commands of the walk on what
was recorded, and puts their output and pictures of the dashboard's timeline into the document. Everything in it is what
a real job gave.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urljoin

import click

from ringtune.dashboard import routes
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.pictures import CHROMIUM_ARGUMENTS, chromium, serving, settled
from ringtune.errors import RingtuneError
from ringtune.timeline.vocabulary import Stage

RANKS, SLOW_RANK, SLOW_MS = 2, 1, 6
FIRST_STEP = 20
"""The first step that counts; those before it warm up."""
PICTURE_STEPS = 3
WIDTH, HEIGHT = 1180, 1300
COLORS = 128
TERMINAL = 120
"""Columns of the terminal whose output is shown."""

EXAMPLE = Path(__file__).parent / "examples" / "slow_rank.py"
STAMP = "-20260101-000000"
GUIDE = Path(__file__).parents[1] / "core" / "guide" / "ddp-walk.md"
README = Path(__file__).parents[1] / "timeline" / "README.md"
IMAGES = "images"
_BLOCK = "<!-- walk: {name} -->\n```\n"


@click.command()
@click.option("--readme", type=click.Path(path_type=Path, dir_okay=False, exists=True), default=README)
def main(readme: Path) -> None:
    """Make the walk anew, in place."""
    with TemporaryDirectory(prefix="ringtune-walk-") as folder:
        place = Path(folder)
        for name, slow_ms in (("fine", 0), ("slow", SLOW_MS)):
            _train(place, name, slow_ms)
        text = readme.read_text()
        for name, command in commands().items():
            text = replaced(text, name, command, _said(command, place))
        readme.write_text(text)
        with _browser(place / "runs") as page:
            for name in ("fine", "slow"):
                _picture_of_timeline(
                    page, place / "runs" / f"{name}{STAMP}", readme.parent / IMAGES / f"walk-{name}.png"
                )
        _guide(place)


def _guide(place: Path) -> None:
    """Run the guide's job as it stands there, and take its pictures."""
    found = re.search(r'```python title="(\w+\.py)"\n(.*?)```', GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    (place / found[1]).write_text(found[2], encoding="utf-8")
    run = place / "guide" / f"ddp{STAMP}"
    _run(["run", "-np", str(RANKS), "--name", "ddp", "--run-dir", str(run), "--timeline", "ddp.json", sys.executable,
          found[1]], place)  # fmt: skip
    images = GUIDE.parent / IMAGES
    images.mkdir(exist_ok=True)
    with _browser(run.parent) as page:
        _picture_of_timeline(page, run, images / "ddp-timeline.png")
        page.goto(urljoin(page.url, routes.href(routes.Route("stragglers", run.name))))
        page.wait_for_selector(".js-plotly-plot .main-svg")
        settled(page)
        page.screenshot(path=str(images / "ddp-stragglers.png"))
        _smaller(images / "ddp-stragglers.png")


def commands() -> dict[str, list[str]]:
    """Return the commands of the walk by the name of their block."""
    steps = ["--steps", f"{FIRST_STEP}:"]
    return {
        "stragglers": ["stragglers", "slow.json", *steps],
        "critical-path": ["critical-path", "slow.json", *steps],
        "diff": ["diff", "fine.json", "slow.json", *steps, "--tensors", "0"],
    }


def replaced(text: str, name: str, command: Sequence[str], output: str, lines: int = 14) -> str:
    """Return the document with a block's content replaced by a command and the first lines of its output.

    Raises:
        RingtuneError: The document has no such block.
    """
    begin = _BLOCK.format(name=name)
    start = text.find(begin)
    end = text.find("```\n", start + len(begin))
    if start < 0 or end < 0:
        raise RingtuneError(f"the document has no block {begin.splitlines()[0]}")
    rows = [row.rstrip() for row in output.rstrip().splitlines()]
    shown = rows[:lines] + (["..."] if len(rows) > lines else [])
    content = "\n".join([f"$ ringtune timeline {shlex.join(command)}", *shown])
    return text[: start + len(begin)] + content + "\n" + text[end:]


def _train(place: Path, name: str, slow_ms: int) -> None:
    """Run the job once.

    Raises:
        RingtuneError: It failed.
    """
    run = place / "runs" / f"{name}{STAMP}"
    how = ["-np", str(RANKS), "--name", name, "--run-dir", str(run), "--timeline", str(place / f"{name}.json")]
    job = [sys.executable, str(EXAMPLE), "--slow-rank", str(SLOW_RANK), "--slow-ms", str(slow_ms)]
    _run(["run", *how, *job], place)


def _said(command: Sequence[str], place: Path) -> str:
    return _run(["timeline", *command], place)


def _run(words: Sequence[str], place: Path) -> str:
    command = [sys.executable, "-m", "ringtune.cli", *words]
    environment = os.environ | {"COLUMNS": str(TERMINAL)}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RingtuneError(f"ringtune {shlex.join(words)} failed:\n{done.stdout}{done.stderr}")
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


@contextmanager
def _browser(runs: Path) -> Iterator[Any]:
    """Open a page of the dashboard of these runs."""
    from playwright.sync_api import sync_playwright

    with serving(runs) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium()), args=list(CHROMIUM_ARGUMENTS))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(url)
        yield page
        browser.close()


def _picture_of_timeline(page: Any, run: Path, path: Path) -> None:
    """Take a run's timeline, with the critical path and one batch followed."""
    page.goto(urljoin(page.url, routes.href(_route(trace.load(run, trace.sources(run)), run.name))))
    page.wait_for_selector("#timeline-batch")
    settled(page)
    page.locator("#timeline-charts").screenshot(path=str(path))
    _smaller(path)


def _route(index: TimelineIndex, run: str) -> routes.Route:
    """A few steps in the middle, with the first batch of the second of them."""
    known = index.step_range()
    assert known is not None
    first = (known[0] + known[1]) // 2
    window = index.step_window(first, first + PICTURE_STEPS - 1)
    assert window is not None
    spans: Any = index.spans
    chosen = (spans.stage == Stage.COMMUNICATE) & (spans.step == first + 1) & (spans.batch > 0)
    view = {"from": f"{window.begin_ns / 1e6:.3f}", "to": f"{window.end_ns / 1e6:.3f}", "path": "1"}
    return routes.Route("timeline", run, {**view, "batch": str(int(spans.batch[chosen].min()))})


def _smaller(path: Path) -> None:
    """Keep a picture in few colours: a fifth of the bytes, and no eye sees it."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLORS)
    small.save(path, optimize=True)


if __name__ == "__main__":
    main()
