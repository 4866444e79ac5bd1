"""What ``ringtune bench dashboard --live`` looks at: the newest item of every page, and the moment of its making.

The browser notes the moments at which a page shows more than before (`NOTE`); `milestones` are the moments at which
there was more. Steps and samples are the job's own. A tuning session's trials take seconds each; here a thread writes
such lines into the run's journal, so that there are enough of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ringtune import layout
from ringtune.dashboard import routes
from ringtune.dashboard.routes import Route
from ringtune.timeline.merging.parts import part_files
from ringtune.timeline.reading.part_reader import read_part

TRIAL_S = 1.5
"""Between two lines of the journal."""

NOTE = """
() => {
  const seen = {};
  window.ringtuneSeen = seen;
  const note = (name, value) => {
    const own = (seen[name] = seen[name] || []);
    const last = own[own.length - 1];
    if (Number.isFinite(value) && (!last || value > last[1])) {
      own.push([Date.now(), value]);
    }
  };
  const plotOf = (graph) => document.querySelector(graph + " .js-plotly-plot");
  const newest = (graph, at) => {
    const plot = plotOf(graph);
    let most = -Infinity;
    for (const trace of (plot && plot._fullData) || []) {
      for (let place = 0; place < ((trace.x && trace.x.length) || 0); place += 1) {
        most = Math.max(most, at(trace, place));
      }
    }
    return most;
  };
  const said = (where, words) => {
    const found = document.querySelector(where);
    const number = found && found.innerText.match(words);
    return number ? Number(number[1].replace(/,/g, "")) : NaN;
  };
  const look = () => {
    note("steps", said("#overview-stats .rt-stat-value", /([0-9,]+)/));
    note("sums", said("#communication-age", /steps [0-9,]+ to ([0-9,]+)/));
    note("now", said("#whatif-age", /step ([0-9,]+)/));
    note("beside", said("#compare-age", /A is running: step ([0-9,]+)/));
    requestAnimationFrame(look);
  };
  const x = (trace, place) => trace.x[place];
  const graphs = {
    "#overview-steps": () => note("line", newest("#overview-steps", x)),
    "#timeline-graph": () => note("timeline", newest("#timeline-graph",
      (trace, place) => trace.base ? trace.base[place] + trace.x[place] : -Infinity)),
    "#stragglers-map": () => {
      const map = plotOf("#stragglers-map")._fullData[0];
      const columns = map ? Array.from(map.x) : [];
      const wide = map && Number((map.hovertemplate.match(/([0-9]+) steps about/) || [0, 1])[1]);
      const before = columns[columns.length - 2];
      note("map", before === undefined ? NaN : 2 * columns[columns.length - 1] - before - (wide + 1) / 2);
    },
    "#system-cpu": () => note("samples", newest("#system-cpu", x)),
    "#tuning-trials": () => note("trials", newest("#tuning-trials",
      (trace, place) => trace.mode === "markers" ? trace.x[place] : -Infinity)),
  };
  for (const [graph, drawn] of Object.entries(graphs)) {
    if (plotOf(graph)) {
      plotOf(graph).on("plotly_afterplot", drawn);
      drawn();
    }
  }
  requestAnimationFrame(look);
}
"""


@dataclass(frozen=True)
class Watched:
    """What is looked at: its name in tables and in the browser's notes, the page, and what is there once it is open."""

    name: str
    noted: str
    page: str
    ready: str


WATCHED = (
    Watched("Overview, number of steps", "steps", "overview", "#overview-stats .rt-stat-value"),
    Watched("Overview, line of step times", "line", "overview", "#overview-steps .scatterlayer .trace"),
    Watched("Timeline", "timeline", "timeline", "#timeline-graph .bars .point"),
    Watched("Timeline, one line a rank", "timeline", "timeline?compact=1", "#timeline-graph .bars .point"),
    Watched("Timeline, with a search", "timeline", "timeline?q=2.weight", "#timeline-graph .bars .point"),
    Watched("Stragglers, map", "map", "stragglers", "#stragglers-map .hm"),
    Watched("Communication, sums", "sums", "communication", "#communication-exposed .bars .point"),
    Watched("System, samples", "samples", "system", "#system-cpu .scatterlayer .trace"),
    Watched("Tuning, trials", "trials", "tuning", "#tuning-trials .scatterlayer .trace"),
    Watched("What if, the job now", "now", "what-if", "#whatif-efficiency .scatterlayer .trace"),
    Watched("Compare, newest steps", "beside", "compare", "#compare-spread .scatterlayer .trace"),
)
PAGES = tuple(dict.fromkeys(one.page for one in WATCHED))


def address(page: str, run: Path, other: str) -> str:
    """Return the address of a page of a run, beside another where the page compares."""
    if page == "compare":
        return routes.href(Route("compare", "", {"a": run.name, "b": other}))
    name, _, query = page.partition("?")
    return routes.href(Route(name, run.name)) + (f"?{query}" if query else "")


@dataclass
class Session:
    """A journal of tuning into which trials are written, and when each was."""

    ends: list[float] = field(default_factory=list)


@contextmanager
def tuning(run: Path) -> Iterator[Session]:
    """Write trials into a run's journal, one after the other, until the context ends."""
    journal, session, ended = layout.tuning_journal(run), Session(), threading.Event()
    journal.parent.mkdir(exist_ok=True)
    knobs = {"fusion_bytes": 64 << 20, "cycle_time_ns": 1_000_000}
    start = {"event": "start", "default": knobs, "world": 2}
    journal.write_bytes(orjson.dumps(start) + b"\n")

    def write() -> None:
        while True:
            with journal.open("ab") as file:
                file.write(orjson.dumps(_trial(len(session.ends), knobs)) + b"\n")
            session.ends.append(time.time())
            if ended.wait(TRIAL_S):
                return

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield session
    finally:
        ended.set()
        thread.join()


def _trial(number: int, knobs: dict[str, int]) -> dict[str, Any]:
    step_ns = 40e6 + 1e6 * ((number * 7) % 11)
    return {
        "event": "trial", "trial": number, "source": "sampler" if number else "default", "state": "complete",
        "knobs": {**knobs, "fusion_bytes": (1 + number % 9) << 20}, "knobs_version": number, "steps": 30,
        "step_ns": {"median": step_ns, "low": 0.98 * step_ns, "high": 1.02 * step_ns}, "lost_ns": 1_000_000 * number,
    }  # fmt: skip


def milestones(
    noted: str, ends: NDArray[np.float64], folder: Path, session: Session | None
) -> list[tuple[float, float]]:
    """Return when there was more to show, in seconds since 1970, and the least of what is noted that shows it.

    Args:
        noted: See `Watched`.
        ends: When the last of the ranks had ended each step.
        folder: Of the run.
        session: Whose trials were written, if any.
    """
    numbers = np.arange(len(ends), dtype=np.float64)
    if noted == "trials":
        return [(at, float(number)) for number, at in enumerate(session.ends)] if session is not None else []
    if noted == "samples":
        taken = [line["unix_ns"] / 1e9 for line in rows(layout.sample_log(folder, 0))]
        first = min(line["unix_ns"] / 1e9 for rank in (0, 1) for line in rows(layout.sample_log(folder, rank))[:1])
        return [(at, round(at - first, 3) - 1e-3) for at in taken]
    shows = numbers
    if noted == "steps":
        shows = numbers + 1
    elif noted == "timeline":
        origin_s = min(_first_ms(path) for path in part_files(folder)) / 1e3
        shows = 1000 * (ends - (time.time() - time.monotonic()) - origin_s) - 1
    return list(zip(ends.tolist(), shows.tolist(), strict=True))


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a log."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _first_ms(part: Path) -> float:
    """Return the first moment of a part, in milliseconds of its clock: that of its first spans."""
    return float(read_part(part).spans.begin_ns.min()) / 1e6
