"""The time of communication: exposed or overlapped, by phase, by size, by fill of the buffer, and waiting."""

from __future__ import annotations

import time
from typing import Any

import dash_mantine_components as dmc
import numpy as np
from dash import Dash, Input, Output, State, dcc, html

from ringtune.dashboard.components import (
    address_store,
    age,
    card,
    drawn_store,
    empty,
    follow_address,
    graph,
    page_frame,
    poll_texts,
    problems,
    shown,
    stat,
    stats,
)
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import communication as data
from ringtune.dashboard.data.analysis import Analysis
from ringtune.dashboard.figures import communication as figures
from ringtune.dashboard.pages.progress import age_words, as_of, reading
from ringtune.dashboard.pages.stragglers import Seen, nothing, pace_of, seen
from ringtune.dashboard.pages.timeline_state import address
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import Scheme, scheme_of
from ringtune.dashboard.units import plain
from ringtune.errors import UsageError
from ringtune.timeline.units import parse_rate

_NOTHING = (
    "No timeline was recorded",
    "With a timeline, every rank records when each batch moved and which rank it waited for. Start the job with:",
    "ringtune run -np 2 --timeline trace.json python train.py",
)
CARDS = (
    (
        "exposed",
        "Exposed and overlapped",
        "Exposed communication and waiting for late ranks block training; overlapped communication is hidden behind "
        "computation.",
    ),
    ("phases", "Phases", "Time per step in which each phase was active; spans that overlap count once."),
    (
        "bandwidth",
        "Bandwidth by batch size",
        "Bus bandwidth, comparable between numbers of ranks. The bars reach from the 5th to the 95th percentile; what "
        "lies between both lines is time in which a rank waited inside the collective for a late one.",
    ),
    (
        "fill",
        "How full the fusion buffer was",
        "Few and full batches cost least; many small ones mean a short cycle time or a small buffer.",
    ),
    (
        "waits",
        "What kept tensors from moving",
        "Summed over tensors that wait at the same time. Control is the cost of agreement after the last rank has "
        "submitted; under a step schedule there is no agreement, only waiting.",
    ),
)


def layout(_context: Context, route: Route) -> html.Div:
    """Return the page; its callback fills it."""
    link = dmc.TextInput(
        id="communication-link",
        value=route.query.get("link", "")[:40],
        placeholder="Link, e.g. 12.5GB/s",
        debounce=400,
        w=190,
        size="sm",
        **{"aria-label": "Bandwidth of the link between ranks"},
    )
    cards = {
        name: card(
            title, html.Div([*([link] if name == "bandwidth" else []), graph(f"communication-{name}", 300)]), hint
        )
        for name, title, hint in CARDS
    }
    pair = {"cols": {"base": 1, "md": 2}, "spacing": "md"}
    charts = [
        html.Div(id="communication-stats"),
        dmc.SimpleGrid([cards["exposed"], cards["phases"]], **pair),
        dmc.SimpleGrid([cards["bandwidth"], cards["fill"]], **pair),
        cards["waits"],
    ]
    more = [
        address_store("communication"),
        dcc.Store(id=drawn_store("communication")),
        html.Div(reading(), id="communication-preparing"),
        age("communication"),
    ]
    return page_frame("communication", charts, empty(*_NOTHING), more)


def link_limit(text: str, found: Analysis) -> tuple[tuple[float, str] | None, str]:
    """Return the limit to draw, named by the user or shown by the batches, and what is wrong with the text."""
    if text.strip():
        try:
            return (parse_rate(text), f"link, {plain(text.strip(), 20)}"), ""
        except UsageError:
            return None, "expected for example 12.5GB/s or 100Gbit/s"
    moving = found.columns["batch_moving"]
    moving = moving[np.isfinite(moving)]
    return ((float(np.percentile(moving, 95)), "fastest 5 % of batches") if len(moving) else None), ""


def drawn(found: Analysis, link: str, scheme: Scheme) -> dict[str, Any]:
    """Return the figures by the names of their cards."""
    limit, _ = link_limit(link, found)
    return {
        "exposed": figures.exposed(data.exposed(found), scheme),
        "phases": figures.phases(data.phases(found), scheme),
        "bandwidth": figures.bandwidth(found.columns, limit, scheme),
        "fill": figures.fill(found.document["fill"], scheme),
        "waits": figures.waits(data.waits(found), scheme),
    }


_REST = "bandwidths and how full the buffer was"


def _drawn(found: Analysis, cards: list[tuple[str, str, str]], pathname: str | None) -> dict[str, Any]:
    """Return what the next polls need to know: which numbers and bars there are, and in which units."""
    bars = {name: [unit_ns, _shape(rows)] for name, (unit_ns, rows) in figures.bars(found).items()}
    return {"page": pathname, "number": time.monotonic_ns(), "cards": [label for label, _, _ in cards], "bars": bars}


def _shape(rows: figures.Rows) -> list[Any]:
    return [rows.ranks, [name for name, _, _ in rows.bars]]


def news(context: Context, route: Route, before: dict[str, Any]) -> dict[str, Any]:
    """Return the current totals of a running job: lengths of bars, numbers, and the steps that the page covers.

    Args:
        context: The state behind the pages.
        route: The page.
        before: What was drawn, from the browser, which may send anything.
    """
    known, number = before.get("bars"), before.get("number")
    if not isinstance(known, dict):
        return {}
    found = seen(context, route, "sums", anew=False)
    if not isinstance(found, Seen) or found.newest is None:
        return {}
    now, cards = figures.bars(found.analysis), data.numbers(found.analysis)
    shapes = {name: _shape(rows) for name, (_, rows) in now.items()}
    units = {name: one[0] for name, one in known.items() if isinstance(one, list) and len(one) == 2}
    if shapes != {name: known[name][1] for name in units} or [card[0] for card in cards] != before.get("cards"):
        return {"anew": number}
    drawn_again = [
        {"graph": f"communication-{name}", "traces": figures.bars_now(rows, float(units[name]))}
        for name, (_, rows) in now.items()
    ]
    texts = [["communication-age", age_words(found.newest, _REST)], *poll_texts("communication", cards)]
    return {"grown": {"number": number, "drawn": before, "figures": drawn_again}, "texts": texts}


_FIGURES = [name for name, _, _ in CARDS]
_OUTPUTS = {
    **{name: Output(f"communication-{name}", "figure") for name in _FIGURES},
    **{f"{name}-size": Output(f"communication-{name}", "style") for name in _FIGURES},
    "stats": Output("communication-stats", "children"),
    "wrong": Output("communication-link", "error"),
    "problems": Output("communication-problems", "children"),
    "preparing": Output("communication-preparing", "children"),
    "charts": Output("communication-charts", "style"),
    "empty": Output("communication-empty", "style"),
    "address": Output("communication-address", "data"),
    "age": Output("communication-age", "children"),
    "drawn": Output(drawn_store("communication"), "data"),
}


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(
        output=_OUTPUTS,
        inputs={
            "link": Input("communication-link", "value"),
            "slow": Input("slow", "data"),
            "scheme": Input("scheme", "data"),
            "pathname": State("url", "pathname"),
        },
    )
    def draw(link: str | None, slow: Any, scheme: str | None, pathname: str | None) -> dict[str, Any]:
        route = context.route(pathname, "")
        seen_ = seen(context, route, "sums")
        if not isinstance(seen_, Seen):
            return nothing(seen_, _OUTPUTS)
        found = seen_.analysis
        with context.cpu_budget.drawing(route):
            answers = drawn(found, link or "", scheme_of(scheme))
            cards = data.numbers(found)
            return {
                **answers,
                **{f"{name}-size": {"height": figure.layout.height} for name, figure in answers.items()},
                "stats": stats([stat(*texts, at, "communication") for at, texts in enumerate(cards)]),
                "wrong": link_limit(link or "", found)[1],
                "problems": problems(found.problems),
                "preparing": as_of(pace_of(context, pathname)),
                "charts": shown(True),
                "empty": shown(False),
                "address": address(pathname, None, {"link": link or ""}),
                "age": age_words(seen_.newest, _REST),
                "drawn": _drawn(found, cards, pathname) if seen_.newest is not None else None,
            }

    follow_address(app, "communication")
