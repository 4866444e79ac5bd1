"""Stragglers: a map of ranks and steps, the results of the tests, and the link from a cell to the timeline."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from ringtune.dashboard import routes
from ringtune.dashboard.components import (
    address_store,
    age,
    card,
    drawn_numbers,
    drawn_store,
    empty,
    follow_address,
    follow_place,
    graph,
    page_frame,
    problems,
    shown,
)
from ringtune.dashboard.context import Context
from ringtune.dashboard.data.analysis import Analysis
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.lateness import LateMap, cell_at, growing_width, late_map, place_of
from ringtune.dashboard.data.live.analysis import Newest
from ringtune.dashboard.data.timeline.prepare import Preparing
from ringtune.dashboard.figures import stragglers as figures
from ringtune.dashboard.pages import stragglers_verdict as parts
from ringtune.dashboard.pages.overview_failure import brief
from ringtune.dashboard.pages.progress import age_words, as_of, progress, reading
from ringtune.dashboard.pages.timeline_state import address
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import scheme_of
from ringtune.dashboard.units import plain, time_scale
from ringtune.timeline.analysis.stragglers import CAUSES

_NOTHING = (
    "No timeline was recorded",
    "Late ranks and their causes are computed from a timeline of all ranks. Start the job with:",
    "ringtune run -np 2 --timeline trace.json python train.py",
)
_HINT = (
    "The lateness of a rank where all others waited only for it. Drag over steps to see them closer, double "
    "click for all, click a cell for that step in the timeline."
)


def layout(_context: Context, route: Route) -> html.Div:
    """Return the page; its callback fills it."""
    chosen = route.query.get("cause", "")
    buttons = dmc.Group(
        [
            dmc.SegmentedControl(
                id="stragglers-cause",
                data=[{"value": "", "label": "All causes"}, *({"value": one, "label": one} for one in CAUSES)],
                value=chosen if chosen in CAUSES else "",
                size="sm",
            ),
            dmc.Button("All steps", id="stragglers-all", variant="default", size="sm"),
            dmc.Text(id="stragglers-note", size="sm", c="dimmed"),
        ],
        gap="sm",
        mb=4,
    )
    charts = [
        html.Div(id="stragglers-words"),
        card("Lateness by rank and step", html.Div([buttons, graph("stragglers-map", 200)]), _HINT),
        html.Div(id="stragglers-tables"),
    ]
    more = [
        html.Div(id="stragglers-ending"),
        address_store("stragglers"),
        dcc.Store(id=drawn_store("stragglers")),
        dcc.Store(id="stragglers-steps", data=_steps_of(route)),
        dcc.Store(id="stragglers-zoom"),
        html.Div(reading(), id="stragglers-preparing"),
        age("stragglers"),
    ]
    return page_frame("stragglers", charts, empty(*_NOTHING), more)


def _steps_of(route: Route) -> list[int] | None:
    """Return the first and last step that an address asks for."""
    first, last = route.number("from"), route.number("to")
    return [int(first), int(last)] if first is not None and last is not None and first <= last else None


def zoomed(event: dict[str, Any] | None, held: list[int] | None) -> list[int] | None:
    """Return the steps to show after an event of the figure; ``held`` where it does not ask for others."""
    event = event or {}
    if event.get("xaxis.autorange"):
        return None
    ends = event.get("xaxis.range") or [event.get("xaxis.range[0]"), event.get("xaxis.range[1]")]
    if not all(isinstance(end, (int, float)) and abs(end) < 1e15 for end in ends):
        return held
    first, last = round(min(ends) + 0.5), round(max(ends) - 0.5)
    return [max(0, first), max(0, first, last)]


@dataclass(frozen=True)
class Seen:
    """The analysis of a run, and for a running job its progress and the steps that it covers."""

    analysis: Analysis
    newest: Newest | None = None


def seen(context: Context, route: Route, what: str, *, anew: bool = True) -> Seen | Preparing | str | None:
    """Return the analysis of the route's run, how far it is, why there is none, or None when nothing was recorded.

    Args:
        context: The state behind the pages.
        route: The page.
        what: Which half of a running job's analysis has to be up to date (`LiveStore.analysis`).
        anew: Repeat the full analysis where it is due.
    """
    run = context.run(route)
    if run is None:
        return None
    try:
        newest = context.live.analysis(run, what, anew=anew)
        found = newest.analysis if newest is not None else context.timelines.analysis(run)
    except Unreadable as error:
        return str(error)
    if isinstance(found, Preparing):
        return found
    return Seen(found, newest) if found.document["summary"]["span_count"] else None


def analysis_of(context: Context, pathname: str | None) -> Analysis | Preparing | str | None:
    """Return the analysis of the address's run as `seen` does, alone."""
    found = seen(context, context.route(pathname, ""), "lateness", anew=False)
    return found.analysis if isinstance(found, Seen) else found


def pace_of(context: Context, pathname: str | None) -> str:
    """Return the age of the analysis of the address's run in words, where it has to be shown."""
    run = context.run(context.route(pathname, ""))
    return context.timelines.pace_words(run) if run is not None and not context.live.follows(run) else ""


_OUTPUTS = {
    "map": Output("stragglers-map", "figure"),
    "size": Output("stragglers-map", "style"),
    "ending": Output("stragglers-ending", "children"),
    "words": Output("stragglers-words", "children"),
    "note": Output("stragglers-note", "children"),
    "tables": Output("stragglers-tables", "children"),
    "steps": Output("stragglers-steps", "data"),
    "problems": Output("stragglers-problems", "children"),
    "preparing": Output("stragglers-preparing", "children"),
    "charts": Output("stragglers-charts", "style"),
    "empty": Output("stragglers-empty", "style"),
    "address": Output("stragglers-address", "data"),
    "age": Output("stragglers-age", "children"),
    "drawn": Output(drawn_store("stragglers"), "data"),
}


def nothing(found: Preparing | str | None, outputs: dict[str, Output]) -> dict[str, Any]:
    """Return the answer of a page that has nothing to draw: why, or how far it is."""
    return {
        **dict.fromkeys(outputs, no_update),
        "problems": problems([found] if isinstance(found, str) else []),
        "preparing": progress(found if isinstance(found, Preparing) else None),
        "charts": shown(False),
        "empty": shown(found is None),
        "drawn": None,
    }


def _answer(found: Seen, cause: str, steps: list[int] | None, prefix: str, about: dict[str, Any]) -> dict[str, Any]:
    """Draw the map of a cause and of some steps; ``about``: the scheme and the address."""
    analysis, grows = found.analysis, found.newest is not None and steps is None
    drawn = late_map(analysis, cause, (steps[0], steps[1]) if steps else None, _width(analysis) if grows else None)
    query = {"cause": cause, "from": str(steps[0]) if steps else "", "to": str(steps[1]) if steps else ""}
    figure = figures.late_heat(drawn, scheme_of(about["scheme"]))

    def href(step: int, rank: int) -> str:
        return timeline_href(analysis, about["run"], (step, rank), prefix)

    return {
        "map": figure.update_layout(uirevision=str(steps)),
        "size": {"height": figure.layout.height},
        "words": parts.verdict(analysis, href),
        "note": _note(drawn),
        "tables": parts.tables(analysis, href),
        "steps": steps,
        "problems": problems(analysis.problems),
        "preparing": as_of(about["pace"]),
        "charts": shown(True),
        "empty": shown(False),
        "address": address(about["pathname"], None, query),
        "age": age_words(found.newest),
        "drawn": _drawn(drawn, cause, about["pathname"]) if grows else None,
    }


def _width(found: Analysis) -> int:
    """The number of steps per column while the job runs."""
    known = found.columns["step"]
    return growing_width(int(known[-1]) - int(known[0]) + 1) if len(known) else 1


def _drawn(drawn: LateMap | None, cause: str, pathname: str | None) -> dict[str, Any] | None:
    """Return what the next polls need to know to add columns."""
    if drawn is None:
        return None
    top_ns = figures.brightest_ns(drawn)
    about = {"cause": cause, "unit_ns": time_scale(top_ns)[0], "top_ns": top_ns, "rows": len(drawn.ranks)}
    return {"page": pathname, "number": time.monotonic_ns(), **about, **_reach(drawn)}


def _reach(drawn: LateMap) -> dict[str, int]:
    """How far the map of a running job reaches: its first and last step, and the steps of a column."""
    first, last = drawn.recorded
    return {"first": first, "last": last, "wide": drawn.steps[0][1] - drawn.steps[0][0] + 1}


def news(context: Context, route: Route, before: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of the map that came or changed since it was drawn, and of which steps the page is.

    Args:
        context: The state behind the pages.
        route: The page.
        before: What was drawn, from the browser, which may send anything.
    """
    numbers = drawn_numbers(before, "first", "last", "wide", "rows", "unit_ns", "top_ns")
    if numbers is None or not numbers[4]:
        return {}
    found = seen(context, route, "lateness", anew=False)
    if not isinstance(found, Seen) or found.newest is None:
        return {}
    first, last, wide, rows, unit_ns, top_ns = numbers
    width = _width(found.analysis)
    same = (found.newest.first, width) == (first, wide)
    at = (int(last) - int(first)) // width if same else 0
    steps = (found.newest.first + at * width, found.newest.last)
    cause = str(before.get("cause") or "")
    drawn = late_map(found.analysis, cause, steps, width) if steps[0] <= steps[1] else None
    if drawn is None or len(drawn.ranks) != rows:
        return {"anew": before.get("number")}
    traces = figures.more_columns(drawn, at, unit_ns)
    now = {**before, "first": found.newest.first, "last": found.newest.last, "wide": width}
    grown = {"number": before.get("number"), "drawn": now, "figures": [{"graph": "stragglers-map", "traces": traces}]}
    everything = late_map(found.analysis, cause, None, width)
    said = _reached((found.newest.first, found.newest.last), width, drawn.recorded[1])
    said += figures.clipped_words(everything, top_ns) if everything is not None else ""
    return {"grown": grown, "texts": [["stragglers-age", age_words(found.newest)], ["stragglers-note", said]]}


def _note(drawn: LateMap | None) -> str:
    if drawn is None:
        return "No steps were recorded: there is no map."
    ends = (drawn.steps[0][0], drawn.steps[-1][1])
    last = ends[1] if ends == drawn.recorded else drawn.recorded[1]
    return _reached(ends, drawn.steps[0][1] - drawn.steps[0][0] + 1, last) + figures.clipped_words(drawn)


def _reached(ends: tuple[int, int], width: int, last: int) -> str:
    several = f", {width} a column" if width > 1 else ""
    return f"Steps {ends[0]:,} to {ends[1]:,}{several}" + ("" if last == ends[1] else f" of {last:,}")


def timeline_href(found: Analysis, run_id: str, where: tuple[int, int], prefix: str) -> str:
    """Return the address of a step (and rank) in the run's timeline; empty where the step is not recorded."""
    place = place_of(found, *where)
    if place is None:
        return ""
    query = {"ranks": ",".join(map(str, place.ranks))}
    said = address("", place.window, query)["search"]
    return f"{routes.href(Route('timeline', run_id), prefix)}?{said}"


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(
        output=_OUTPUTS,
        inputs={
            "zoom": Input("stragglers-zoom", "data"),
            "cause": Input("stragglers-cause", "value"),
            "everything": Input("stragglers-all", "n_clicks"),
            "slow": Input("slow", "data"),
            "scheme": Input("scheme", "data"),
            "held": State("stragglers-steps", "data"),
            "pathname": State("url", "pathname"),
        },
    )
    def draw(**values: Any) -> dict[str, Any]:
        route = context.route(values["pathname"], "")
        found, run = seen(context, route, "lateness"), context.run(route)
        ended = brief(context, run) if run is not None else []
        if not isinstance(found, Seen):
            return {**nothing(found, _OUTPUTS), "ending": ended}
        steps = values["held"]
        if ctx.triggered_id == "stragglers-all":
            steps = None
        elif ctx.triggered_id == "stragglers-zoom":
            steps = zoomed((values["zoom"] or {}).get("moved"), steps)
        pace = pace_of(context, values["pathname"])
        about = {"scheme": values["scheme"], "pathname": values["pathname"], "run": route.run, "pace": pace}
        with context.cpu_budget.drawing(route):
            return {**_answer(found, str(values["cause"] or ""), steps, context.prefix, about), "ending": ended}

    @app.callback(
        Output("stragglers-place", "data"),
        Input("stragglers-map", "clickData"),
        State("stragglers-cause", "value"),
        State("stragglers-steps", "data"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def drill(clicked: dict[str, Any] | None, cause: str | None, steps: list[int] | None, pathname: str | None) -> Any:
        found = seen(context, context.route(pathname, ""), "lateness", anew=False)
        point = ((clicked or {}).get("points") or [{}])[0]
        if not isinstance(found, Seen) or not isinstance(point.get("x"), (int, float)):
            return no_update
        wide = _width(found.analysis) if found.newest is not None and not steps else None
        drawn = late_map(found.analysis, cause or "", (steps[0], steps[1]) if steps else None, wide)
        where = cell_at(drawn, float(point["x"]), plain(point.get("y", ""))) if drawn is not None else None
        run = context.route(pathname, "").run
        return timeline_href(found.analysis, run, where, context.prefix) if where else no_update

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "zoomed"),
        Output("stragglers-zoom", "data"),
        Input("stragglers-map", "relayoutData"),
        prevent_initial_call=True,
    )
    follow_address(app, "stragglers")
    follow_place(app, "stragglers")
