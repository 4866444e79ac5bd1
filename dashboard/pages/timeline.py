"""The timeline of all ranks: zoom, pan, search, jump; every answer holds a few thousand shapes at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from ringtune.dashboard.components import address_store, empty, follow_address, graph, problems, shown
from ringtune.dashboard.context import Context
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.timeline import Query, TimelineIndex, View, Window
from ringtune.dashboard.figures import timeline as figures
from ringtune.dashboard.figures.timeline import NS_PER_AXIS
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import scheme_of
from ringtune.dashboard.units import count, duration

MARGIN = 0.6
"""Share of the window that is answered beyond it on both sides, so that a small pan finds something at once."""

RANK_LIMIT = 16
"""Ranks shown at first; more make lanes that nobody can read."""

START_STEPS = 3


def layout(context: Context, route: Route) -> html.Div:
    """Return the page; its callback draws the timeline."""
    index = _index(context, route)
    ranks = [str(rank) for rank in index.ranks] if isinstance(index, TimelineIndex) else []
    chosen = [rank for rank in route.list("ranks") if rank in ranks]
    chosen = chosen or (ranks[:RANK_LIMIT] if len(ranks) > RANK_LIMIT else [])
    nothing = empty(
        "No timeline was recorded",
        "With it on, every rank records when each tensor was negotiated, queued, copied and sent. Start the job so:",
        "ringtune run -np 2 --timeline trace.json python train.py",
    )
    return html.Div(
        [
            html.Div(id="timeline-problems"),
            address_store("timeline"),
            dcc.Store(id="timeline-window", data=_asked(route)),
            html.Div(
                dmc.Card(
                    [
                        _controls(route, ranks, chosen),
                        dmc.Group(
                            [
                                dmc.Text(id="timeline-note", size="sm", c="dimmed"),
                                dmc.Text("Scroll to zoom, drag to pan, point for details", size="xs", c="dimmed"),
                            ],
                            justify="space-between",
                            mt=8,
                        ),
                        graph("timeline-graph", 520, scrollZoom=True, doubleClick="autosize"),
                    ],
                    withBorder=True,
                    radius="md",
                    p="md",
                ),
                id="timeline-charts",
            ),
            html.Div(nothing, id="timeline-empty"),
        ]
    )


def _controls(route: Route, ranks: list[str], chosen: list[str]) -> dmc.Group:
    search = dmc.TextInput(
        id="timeline-search",
        value=route.query.get("q", "")[:200],
        placeholder="Search a tensor or a span …",
        debounce=350,
        w=230,
        **{"aria-label": "Search a tensor"},
    )
    step = dmc.NumberInput(
        id="timeline-step",
        placeholder="Jump to step",
        min=0,
        w=140,
        debounce=500,
        hideControls=True,
        **{"aria-label": "Step"},
    )
    select = dmc.MultiSelect(
        id="timeline-ranks",
        data=[{"value": rank, "label": f"rank {rank}"} for rank in ranks],
        value=chosen,
        placeholder="All ranks" if not chosen else "",
        clearable=True,
        w=210 if len(chosen) < 3 else 420,
        **{"aria-label": "Ranks"},
    )
    return dmc.Group(
        [
            search,
            dmc.Button("Next match", id="timeline-next", variant="default"),
            step,
            select,
            dmc.Button("First steps", id="timeline-start", variant="default"),
            dmc.Button("Whole run", id="timeline-fit", variant="default"),
        ],
        gap="sm",
    )


def _asked(route: Route) -> dict[str, Any]:
    begin, end = route.number("from"), route.number("to")
    window = [begin * NS_PER_AXIS, end * NS_PER_AXIS] if begin is not None and end is not None and begin < end else None
    return {"window": window, "revision": 0}


def _index(context: Context, route: Route) -> TimelineIndex | str | None:
    """Return the index of the route's run, a sentence why it cannot be shown, or None when nothing was recorded."""
    run = context.run(route)
    if run is None:
        return None
    try:
        index = context.timeline(run)
    except Unreadable as error:
        return str(error)
    return index if len(index.spans) else None


def dragged(event: dict[str, Any] | None) -> Window | str | None:
    """Return the window that a zoom or pan in the browser left, ``all`` for a double click, None for anything else."""
    event = event or {}
    if event.get("xaxis.autorange"):
        return "all"
    ends = event.get("xaxis.range") or [event.get("xaxis.range[0]"), event.get("xaxis.range[1]")]
    if not (isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, (int, float)) for end in ends)):
        return None
    window = Window(ends[0] * NS_PER_AXIS, ends[1] * NS_PER_AXIS)
    return window if window.length_ns > 0 else None


@dataclass(frozen=True)
class Controls:
    """What the page's controls say when something happened to one of them."""

    event: dict[str, Any] | None
    search: str
    step: object
    held: Window | None


def next_window(index: TimelineIndex, trigger: str | None, controls: Controls) -> tuple[Window | None, bool]:
    """Return the window to show after an event, and whether the server chose it (then the browser must follow)."""
    if trigger == "timeline-graph":
        moved = dragged(controls.event)
        if isinstance(moved, Window):
            return moved, False
        return (None, True) if moved == "all" else (controls.held, False)
    if trigger == "timeline-fit":
        return None, True
    if trigger == "timeline-start":
        return first_steps(index), True
    if trigger == "timeline-step" and isinstance(controls.step, (int, float)):
        window = index.step_window(int(controls.step))
        return (window, True) if window else (controls.held, False)
    if trigger == "timeline-next":
        held = index.clamped(controls.held)
        found = index.next_hit(controls.search, (held.begin_ns + held.end_ns) / 2)
        return (found, True) if found else (controls.held, False)
    return controls.held, False


def first_steps(index: TimelineIndex) -> Window | None:
    """Return the window of the first steps after the warm-up; None when no steps were recorded."""
    known = index.step_range()
    if known is None:
        return None
    first = min(known[0] + 1, known[1])
    return index.step_window(first, min(first + START_STEPS - 1, known[1]))


def note(index: TimelineIndex, view: View, missed_step: object = None) -> str:
    """Return the sentence below the controls: how much is shown, and what the search found."""
    if missed_step is not None:
        known = index.step_range()
        recorded = f"steps {count(known[0])} to {count(known[1])} are" if known else "no step is"
        return f"Step {missed_step} is not in the timeline; {recorded} recorded."
    blocks = int((view.shapes.span < 0).sum())
    merged = f", drawn as {count(len(view.shapes))} shapes; zoom in to see each" if blocks else ""
    text = f"{count(view.spans)} spans in {duration(view.window.length_ns)}{merged}."
    return text + (f" The search finds {count(view.hits)} spans." if view.searched else "")


def address(pathname: str | None, window: Window | None, search: str, ranks: list[str]) -> dict[str, str]:
    """Return the address that restores a view; no ``ranks`` are all of them."""
    query: dict[str, str] = {}
    if window is not None:
        # A thousandth of the window is enough to restore it, and keeps addresses short.
        digits = min(6, max(0, 9 - len(str(int(window.length_ns)))))
        query = {
            "from": f"{window.begin_ns / NS_PER_AXIS:.{digits}f}",
            "to": f"{window.end_ns / NS_PER_AXIS:.{digits}f}",
        }
    if search:
        query["q"] = search
    if ranks:
        query["ranks"] = ",".join(ranks)
    return {"path": pathname or "/", "search": urlencode(query)}


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(
        Output("timeline-graph", "figure"),
        Output("timeline-note", "children"),
        Output("timeline-window", "data"),
        Output("timeline-problems", "children"),
        Output("timeline-charts", "style"),
        Output("timeline-empty", "style"),
        Output("timeline-address", "data"),
        Input("timeline-graph", "relayoutData"),
        Input("timeline-search", "value"),
        Input("timeline-next", "n_clicks"),
        Input("timeline-step", "value"),
        Input("timeline-ranks", "value"),
        Input("timeline-start", "n_clicks"),
        Input("timeline-fit", "n_clicks"),
        Input("stamp", "data"),
        Input("scheme", "data"),
        State("timeline-window", "data"),
        State("url", "pathname"),
    )
    def draw(
        event: dict[str, Any] | None,
        search: str | None,
        _next: int | None,
        step: object,
        ranks: list[str] | None,
        _start: int | None,
        _fit: int | None,
        _stamp: str | None,
        scheme: str | None,
        held: dict[str, Any],
        pathname: str | None,
    ) -> tuple[Any, ...]:
        trigger = ctx.triggered_id
        if trigger == "timeline-graph" and dragged(event) is None:
            return (no_update,) * 7
        index = _index(context, context.route(pathname, ""))
        if not isinstance(index, TimelineIndex):
            return (
                no_update,
                "",
                no_update,
                problems([index] if index else []),
                shown(False),
                shown(index is None),
                no_update,
            )
        before = Window(*held["window"]) if held.get("window") else None
        window, forced = next_window(index, trigger, Controls(event, search or "", step, before))
        chosen = tuple(int(rank) for rank in ranks or [] if rank.isdigit())
        view = index.view(Query(window, chosen, search or "", MARGIN))
        revision = int(held.get("revision", 0)) + forced
        figure = figures.timeline(index, view, scheme_of(scheme))
        figure.update_xaxes(uirevision=revision)
        missed = step if trigger == "timeline-step" and step not in (None, "") and not forced else None
        return (
            figure,
            note(index, view, missed),
            {"window": [window.begin_ns, window.end_ns] if window else None, "revision": revision},
            problems(index.problems),
            shown(True),
            shown(False),
            address(pathname, window, search or "", ranks or []),
        )

    follow_address(app, "timeline")
