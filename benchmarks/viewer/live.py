"""``ringtune bench dashboard --live``: how far behind a running job its pages are, and what watching it costs.

The job is real, two ranks with step log and timeline; so are the server, a process of its own, and the browser. *Lag*
of a step is the time from its end, as the slower rank's step log says, to the frame of the browser that shows it, on
every page that follows a running job (`ringtune.benchmarks.viewer.watching`); of System, from a sample. *Watching* is
the processor time of the server as a share of one core, *recording* that of the threads of the ranks, together, that
write the timeline, watched or not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
from numpy.typing import NDArray
from rich.table import Table

from ringtune import layout
from ringtune.benchmarks.harness.jobs import thread_variables
from ringtune.benchmarks.viewer.config import LiveRun
from ringtune.benchmarks.viewer.watching import NOTE, WATCHED, milestones, rows, tuning
from ringtune.benchmarks.viewer.watching import address as address_of
from ringtune.dashboard.pictures import CHROMIUM_ARGUMENTS, HEIGHT, WIDTH, chromium
from ringtune.errors import RingtuneError

RANKS = 2
START_S = 300
"""How long the job's past may take."""
OPEN_S = 600
"""How long a page may take to open."""
OTHER = "before"
"""The run beside which Compare shows the job."""
WRITER = "ringtune-trace"
"""Name of the thread of a rank that writes its timeline."""
SETTLE_S = 2.0
"""Seconds left out at the begin of a watch, since the cost of opening a page is not measured here."""


@dataclass
class LiveFigures:
    """What was measured of one page: seconds to open it, lags in milliseconds by what is watched, shares of a core."""

    page: str
    steps: int
    timeline_bytes: int
    open_s: float = 0.0
    core_share: float = 0.0
    recording_share: float = 0.0
    lag_ms: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """Which pages are looked at, and for how many seconds each."""

    pages: tuple[str, ...]
    seconds: float


def watch(place: Path, served: tuple[str, psutil.Process], run: LiveRun, look: Look) -> list[LiveFigures]:
    """Start a job in ``place``/runs, and watch pages of it one after the other.

    Raises:
        RingtuneError: The job does not get going.
    """
    from playwright.sync_api import sync_playwright

    with _job(place / "runs" / "live", run) as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium()), args=list(CHROMIUM_ARGUMENTS))
        _other(folder)
        found = [_page(browser, served, folder, page, look.seconds) for page in look.pages]
        browser.close()
    return found


@contextmanager
def _job(folder: Path, run: LiveRun) -> Iterator[Path]:
    """Run the job and yield its folder once its past is over; it ends with the context, and is not merged."""
    command = [sys.executable, "-m", "ringtune.cli", "run", "-np", str(RANKS), "--run-dir", str(folder), "--no-prefix"]
    command += [
        "--timeline",
        str(layout.timeline_file(folder)),
        sys.executable,
        "-m",
        "ringtune.benchmarks.viewer.live_worker",
    ]
    environ = {**os.environ, **thread_variables(1)}
    with subprocess.Popen(
        [*command, json.dumps(asdict(run))], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            deadline = time.monotonic() + START_S
            while _lines(layout.step_log(folder, RANKS - 1)) < run.past + 2:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    said = process.stdout.read() if process.stdout else ""
                    raise RingtuneError(f"the watched job did not start:\n{said[-2000:]}")
                time.sleep(0.2)
            yield folder
        finally:
            for rank in range(RANKS):
                _kill(layout.machine_file(folder, rank))


def _other(folder: Path) -> None:
    """Leave a run beside the job that has ended: what it has written so far."""
    other = folder.with_name(OTHER)
    shutil.copytree(folder, other)
    document = orjson.loads(layout.run_file(folder).read_bytes())
    layout.run_file(other).write_bytes(orjson.dumps({**document, "name": OTHER, "status": "finished"}))


def _kill(machine: Path) -> None:
    if machine.is_file():
        os.kill(int(orjson.loads(machine.read_bytes())["pid"]), signal.SIGKILL)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _page(browser: Any, served: tuple[str, psutil.Process], folder: Path, page: str, seconds: float) -> LiveFigures:
    """Open a page of the running job and look at it for some seconds."""
    address, server = served
    looked_at = [one for one in WATCHED if one.page == page]
    tab = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
    parts = sum(path.stat().st_size for path in layout.timeline_parts(folder).iterdir())
    figures = LiveFigures(page, _lines(layout.step_log(folder, 0)), parts)
    with ExitStack() as stack:
        session = stack.enter_context(tuning(folder)) if page == "tuning" else None
        begun = time.perf_counter()
        tab.goto(address + address_of(page, folder, OTHER))
        for one in looked_at:
            tab.wait_for_selector(one.ready, state="attached", timeout=OPEN_S * 1000)
        figures.open_s = time.perf_counter() - begun
        tab.evaluate(NOTE)
        tab.wait_for_timeout(1000 * SETTLE_S)
        since, used, wrote = time.time(), _cpu_s(server), _recording_s(folder)
        tab.wait_for_timeout(1000 * seconds)
        until = time.time()
        figures.core_share = (_cpu_s(server) - used) / (until - since)
        figures.recording_share = (_recording_s(folder) - wrote) / (until - since)
        seen = tab.evaluate("window.ringtuneSeen")
    tab.close()
    ends = _ends(folder)
    for one in looked_at:
        steps = milestones(one.noted, ends, folder, session)
        figures.lag_ms[one.name] = lags(steps, seen.get(one.noted, []), (since, until))
    return figures


def _cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def _recording_s(folder: Path) -> float:
    """Return the processor time that the ranks' threads which write the timeline took so far."""
    total = 0
    for rank in range(RANKS):
        pid = orjson.loads(layout.machine_file(folder, rank).read_bytes())["pid"]
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if (thread / "comm").read_text().strip() == WRITER:
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def _ends(folder: Path) -> NDArray[np.float64]:
    """Return when the last of the ranks had ended each step, in seconds since 1970."""
    since_1970 = time.time_ns() - time.monotonic_ns()
    ends = [[line["end_ns"] for line in rows(layout.step_log(folder, rank))] for rank in range(RANKS)]
    both = min(map(len, ends))
    last: NDArray[np.float64] = (np.max([rank[:both] for rank in ends], axis=0) + since_1970) / 1e9
    return last


def lags(steps: Sequence[tuple[float, float]], seen: list[list[float]], window: tuple[float, float]) -> list[float]:
    """Return the milliseconds from the end of each step in a window of time to when it was seen.

    Args:
        steps: When each ended, in seconds, and the least that has to be seen of it.
        seen: When more was seen, in milliseconds, and how much; both grow.
        window: Begin and end in seconds. A step that ended in it and was never seen is as late as the last look.
    """
    moments = np.array([at for at, _ in seen] + [1000 * window[1]])
    heights = np.array([height for _, height in seen] + [np.inf])
    chosen = [(end, height) for end, height in steps if window[0] <= end < window[1]]
    places = np.searchsorted(heights, [height for _, height in chosen], "left")
    # Steps of the very end were not seen because the watch had ended.
    late = moments[places] - 1000 * np.array([end for end, _ in chosen])
    kept = (places < len(seen)) | (late >= LEFT_OUT_MS)
    return [float(one) for one in late[kept]]


LIMIT_MS = 3000.0
LIMIT_SHARE = 0.02
LEFT_OUT_MS = 1000.0
"""A step that was not seen when the look ended counts from this age on."""


def live_table(measured: list[LiveFigures]) -> Table:
    """Return the table of lags."""
    table = Table(title="Pages of a running job", title_justify="left")
    for word in (
        "shown on",
        "steps before",
        "timeline",
        "opened in",
        "steps watched",
        "lag: median",
        "p95",
        "most",
        "watching",
        "recording",
    ):
        table.add_column(word, justify="right")
    for one in measured:
        for name, values in one.lag_ms.items():
            shares = [f"{np.quantile(values, q):.0f} ms" if values else "-" for q in (0.5, 0.95, 1)]
            row = [name, f"{one.steps:,}", f"{one.timeline_bytes / 2**20:.0f} MiB", f"{one.open_s:.1f} s"]
            costs = [f"{100 * share:.2f} % of a core" for share in (one.core_share, one.recording_share)]
            table.add_row(*row, str(len(values)), *shares, *costs)
    return table


def missed_live(measured: list[LiveFigures]) -> list[str]:
    """Return a sentence for each limit that a page missed: a second for 95 % of the steps, one per cent of a core."""
    found = []
    for one in measured:
        for name, values in one.lag_ms.items():
            late = float(np.quantile(values, 0.95)) if values else float("inf")
            if late > LIMIT_MS:
                found.append(f"{name}: 95 % of the steps are shown after {late:.0f} ms, the limit is {LIMIT_MS:.0f} ms")
        if one.core_share > LIMIT_SHARE:
            share = 100 * one.core_share
            found.append(f"{one.page}: watching takes {share:.2f} % of a core, the limit is {100 * LIMIT_SHARE:g} %")
    return found
