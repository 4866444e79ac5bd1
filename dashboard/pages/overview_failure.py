"""Pieces of pages: how a run failed, or why it hangs, whole on the Overview, in a sentence on others."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from ringtune.dashboard import routes
from ringtune.dashboard.components import table
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import failure
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.routes import Route
from ringtune.dashboard.units import count
from ringtune.timeline.doctor.failure import Failure, RankEnd
from ringtune.timeline.units import tensor_text

LISTED = 8
"""Ranks in the table: those at fault first."""
RANK_HEAD = ("Rank", "Stood in", "Last collective", "Step", "Ended by")
PRINTED = 4
"""Ranks whose last lines are shown."""


def failure_of(context: Context, run: RunInfo) -> Failure | None:
    """Return how a run failed, or why a running one hangs; a timeline that cannot be shown says nothing."""
    if run.status not in ("failed", "lost") and not failure.hangs(run):
        return None
    try:
        with context.timelines.watched(run) as index:
            return failure.data(run, index if isinstance(index, TimelineIndex) and index.lanes else None)
    except Unreadable:
        return failure.data(run, None)


def ending(run: RunInfo, found: Failure | None) -> list[dmc.Alert]:
    """Return how a run that did not end well ended, or why a running one hangs; nothing for any other."""
    title = _title("This run", run, found)
    content = _content(found) if found else []
    return [dmc.Alert(content, title=title, color="red", mb="md", id="overview-failure")] if title else []


def brief(context: Context, *runs: RunInfo) -> list[dmc.Alert]:
    """Return what `ending` begins with, and a link to it, for each of the runs that has it."""
    found = []
    for name, run in zip(("Run A", "Run B") if len(runs) > 1 else ("This run",), runs, strict=True):
        ended = failure_of(context, run)
        if title := _title(name, run, ended):
            href = routes.href(Route("overview", run.id), context.prefix)
            more = dcc.Link("How each rank ended", href=href, className="rt-link")
            words = f"{ended.words()} " if ended is not None and ended.headline else ""
            found.append(dmc.Alert(dmc.Text([words, more], size="sm"), title=title, color="red", mb="md"))
    return found


def _title(name: str, run: RunInfo, found: Failure | None) -> str:
    """Return how a run ended in a few words; nothing for one that ended well, or gets on."""
    if run.status == "live":
        return f"{name} does not get on" if found is not None else ""
    return f"{name} {'is ' * (run.status == 'lost')}{run.ending}" if run.status in ("failed", "lost") else ""


def _content(found: Failure) -> list[Any]:
    said = found.words()
    parts: list[Any] = [dmc.Text(said, size="sm", fw=600)] if said else []
    if found.hang:
        parts.append(html.Pre("\n".join(found.hang), className="rt-log"))
    ends = found.ranks[:LISTED]
    if any(end.collective or end.error or end.stood for end in ends):
        rows = [_row(end, blamed=end.rank in found.blamed) for end in ends]
        parts.append(table(RANK_HEAD, rows))
        if len(found.ranks) > LISTED:
            parts.append(dmc.Text(f"and {count(len(found.ranks) - LISTED)} more ranks", size="xs", c="dimmed"))
    for end in [end for end in found.ranks if end.lines][:PRINTED]:
        words = dmc.Text(f"rank {end.rank}: last lines", size="xs", c="dimmed")
        parts.append(html.Div([words, html.Pre("\n".join(end.lines), className="rt-log")]))
    return parts


def rank_cells(end: RankEnd) -> list[str]:
    """Return what is known of a rank's end, by the columns of `RANK_HEAD`."""
    step = count(end.step) if end.step >= 0 else "–"
    return [str(end.rank), end.stood or "–", tensor_text(end.collective) or "–", step, end.error or "–"]


def _row(end: RankEnd, *, blamed: bool) -> list[Any]:
    rank, *middle, error = rank_cells(end)
    return [html.B(rank) if blamed else rank, *middle, html.Div(error, className="rt-sentence")]
