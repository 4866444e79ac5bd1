"""What every rank and its machine used while the job ran: CPU, memory, network, GPUs."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html, no_update

from ringtune.dashboard.components import card, empty, graph, page_frame, problems, shown, stat, stats
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import system as data
from ringtune.dashboard.data.system import System
from ringtune.dashboard.figures import system as figures
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import Scheme, scheme_of

_CARDS = (
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
FIGURES = tuple(name for name, _, _ in _CARDS)


def layout(_context: Context, _route: Route) -> html.Div:
    """Return the page; its callback fills it."""
    cards = [html.Div(card(title, graph(f"system-{name}", 270), hint), id=f"system-{name}-card")
             for name, title, hint in _CARDS]  # fmt: skip
    charts = [html.Div(id="system-stats"), dmc.SimpleGrid(cards, cols={"base": 1, "md": 2}, spacing="md")]
    nothing = empty(
        "No samples of this run",
        "Once a second every rank notes what its process and its machine use, if the job was started so:",
        "ringtune run -np 2 python train.py",
    )
    return page_frame("system", charts, nothing)


def drawn(found: System, scheme: Scheme) -> dict[str, Any]:
    """Return the figures by name."""
    lines = {**data.process_lines(found), **data.machine_lines(found)}
    return {name: figures.over_time(name, lines[name], scheme) for name in FIGURES}


_OUTPUTS = {
    **{name: Output(f"system-{name}", "figure") for name in FIGURES},
    "gpu-card": Output("system-gpu-card", "style"),
    "stats": Output("system-stats", "children"),
    "problems": Output("system-problems", "children"),
    "charts": Output("system-charts", "style"),
    "empty": Output("system-empty", "style"),
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
        with context.drawing(route):
            found = context.system(run)
            answers = drawn(found, scheme_of(scheme)) if found.ranks else dict.fromkeys(FIGURES, no_update)
        return {
            **answers,
            "gpu-card": shown(any(rank.gpus for rank in found.ranks)),
            "stats": stats([stat(*texts) for texts in data.numbers(found)]),
            "problems": problems(found.problems),
            "charts": shown(found.ranks),
            "empty": shown(not found.ranks),
        }
