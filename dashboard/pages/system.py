"""What every rank and its machine used while the job ran: CPU, memory, network, GPUs."""

from __future__ import annotations

import time
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update

from ringtune.dashboard.components import (
    card,
    drawn_store,
    empty,
    graph,
    page_frame,
    poll_texts,
    problems,
    shown,
    stat,
    stats,
)
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import system as data
from ringtune.dashboard.data.system import System
from ringtune.dashboard.figures import system as figures
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import Scheme, scheme_of

CARDS = (
    ("cpu", "CPU of ranks", "Cores that each rank's process used, all its threads."),
    ("memory", "Memory of ranks", "Resident memory of each rank's process."),
    ("busy", "CPU of machines", "All programs, over all cores."),
    ("used", "Memory of machines", "The part that is not available to new programs."),
    (
        "network",
        "Network",
        "Over all interfaces of a machine, and through loopback, where ranks of one machine may talk.",
    ),
    ("gpu", "GPUs", "Share of the time in which a GPU worked."),
)
FIGURES = tuple(name for name, _, _ in CARDS)


def layout(_context: Context, _route: Route) -> html.Div:
    """Return the page; its callback fills it."""
    cards = [html.Div(card(title, graph(f"system-{name}", 270), hint), id=f"system-{name}-card")
             for name, title, hint in CARDS]  # fmt: skip
    charts = [html.Div(id="system-stats"), dmc.SimpleGrid(cards, cols={"base": 1, "md": 2}, spacing="md")]
    nothing = empty(
        "No samples of this run",
        "Every rank records once a second what its process and its machine use, if the job was started with:",
        "ringtune run -np 2 python train.py",
    )
    return page_frame("system", charts, nothing, [dcc.Store(id=drawn_store("system"))])


def drawn(found: System, scheme: Scheme) -> dict[str, Any]:
    """Return the figures by name."""
    lines = data.all_lines(found)
    return {name: figures.over_time(name, lines[name], scheme) for name in FIGURES}


def _drawn(found: System, cards: list[tuple[str, str, str]], pathname: str | None) -> dict[str, Any]:
    """Return what the next polls need to know to make the lines longer."""
    about = {"page": pathname, "number": time.monotonic_ns(), "cards": [label for label, _, _ in cards]}
    return {**about, "last": list(data.last_samples(found).items())}


def news(context: Context, route: Route, before: dict[str, Any]) -> dict[str, Any]:
    """Return what lines got longer by since they were drawn, and the numbers; `before` comes from the browser."""
    last, number, run = before.get("last"), before.get("number"), context.run(route)
    if run is None or not isinstance(last, list):
        return {}
    found = context.runs.system(run, thinned=False)
    drawn = {one[0]: one[1] for one in last if isinstance(one, list) and len(one) == 2}
    cards = data.numbers(found)
    if set(drawn) != {rank.rank for rank in found.ranks} or [one[0] for one in cards] != before.get("cards"):
        return {"anew": number}
    lines = data.later_lines(found, drawn)
    longer = [{"graph": f"system-{name}", "traces": figures.longer(name, lines[name])} for name in FIGURES]
    now = {**before, "last": list(data.last_samples(found).items())}
    figures_ = [one for one in longer if one["traces"]]
    return {"grown": {"number": number, "figures": figures_, "drawn": now}, "texts": poll_texts("system", cards)}


_OUTPUTS = {
    **{name: Output(f"system-{name}", "figure") for name in FIGURES},
    "gpu-card": Output("system-gpu-card", "style"),
    "stats": Output("system-stats", "children"),
    "problems": Output("system-problems", "children"),
    "charts": Output("system-charts", "style"),
    "empty": Output("system-empty", "style"),
    "drawn": Output(drawn_store("system"), "data"),
}


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(
        output=_OUTPUTS,
        inputs={"slow": Input("slow", "data"), "scheme": Input("scheme", "data"), "path": State("url", "pathname")},
    )
    def draw(slow: dict[str, Any] | None, scheme: str | None, path: str | None) -> dict[str, Any]:
        route = context.route(path, "")
        run = context.run(route)
        if run is None:
            return dict.fromkeys(_OUTPUTS, no_update)
        with context.cpu_budget.drawing(route):
            found = context.runs.system(run)
            answers = drawn(found, scheme_of(scheme)) if found.ranks else dict.fromkeys(FIGURES, no_update)
            cards = data.numbers(found)
        return {
            **answers,
            "gpu-card": shown(any(rank.gpus for rank in found.ranks)),
            "stats": stats([stat(*texts, at, "system") for at, texts in enumerate(cards)]),
            "problems": problems(found.problems),
            "charts": shown(found.ranks),
            "empty": shown(not found.ranks),
            "drawn": _drawn(found, cards, path) if run.status == "live" and found.ranks else None,
        }
