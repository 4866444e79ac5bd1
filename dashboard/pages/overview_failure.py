"""Pieces of the overview: how a run failed, or why it hangs."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from ringtune.dashboard.components import table
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.units import count
from ringtune.timeline.doctor.failure import Failure, RankEnd
from ringtune.timeline.units import tensor_text

LISTED = 8
"""Ranks in the table: those at fault first."""
RANK_HEAD = ("Rank", "Stood in", "Last collective", "Step", "Ended by")
PRINTED = 4
"""Ranks whose last lines are shown."""


def ending(run: RunInfo, found: Failure | None) -> list[dmc.Alert]:
    """Return how a run that did not end well ended, or why a running one hangs; nothing for any other."""
    hangs = run.status == "live" and found is not None
    if run.status not in ("failed", "lost") and not hangs:
        return []
    title = "This run does not get on" if hangs else f"This run {'is ' * (run.status == 'lost')}{run.ending}"
    return [dmc.Alert(_content(found) if found else [], title=title, color="red", mb="md", id="overview-failure")]


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
