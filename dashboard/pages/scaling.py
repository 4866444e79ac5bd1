"""Does it scale? Throughput and efficiency against ranks, for one run or for all."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html, no_update

from ringtune.dashboard.components import address_store, card, empty, follow_address, graph, problems, shown, table
from ringtune.dashboard.context import Context
from ringtune.dashboard.data.scaling import ScalingSeries, ScalingTable
from ringtune.dashboard.figures import scaling as figures
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import scheme_of
from ringtune.dashboard.units import count, moment, number, percent

SERIES_LIMIT = 8
HEAD = ("Measurement", "Ranks", "Hosts", "Throughput", "Efficiency", "What", "When")


def layout(context: Context, route: Route) -> html.Div:
    """Return the page; its callback fills it. Without a run it shows the records of all runs."""
    found = records(context, route)
    options = [{"value": one.id, "label": f"{one.label} ({one.facts})"} for one in found.series]
    chosen = [one.id for one in found.chosen(route.list("series")).series][:SERIES_LIMIT]
    select = dmc.MultiSelect(
        id="scaling-series",
        data=options,
        value=chosen,
        label="Measurements",
        searchable=True,
        clearable=True,
        maxValues=SERIES_LIMIT,
        style=shown(len(options) > 1 or not route.run),
    )
    charts = dmc.Stack(
        [
            select,
            dmc.SimpleGrid(
                [
                    card("Throughput", graph("scaling-rate", 380), "The whole job, with intervals; dotted: ideal."),
                    card("Efficiency", graph("scaling-efficiency", 380), "Throughput as a share of ideal scaling."),
                ],
                cols={"base": 1, "md": 2},
                spacing="md",
            ),
            card("Measured", html.Div(id="scaling-table")),
        ],
        gap="md",
    )
    nothing = empty(
        "No scaling measured yet" if not route.run else "This run holds no scaling record",
        "The benchmark trains one model on growing numbers of ranks and records images per second. Run it:",
        "ringtune bench resnet -np 1,2 --model resnet50 --batch-size 8",
    )
    title = [] if route.run else [dmc.Title("Scaling", order=2, className="rt-run-name", mb="md")]
    return html.Div(
        [
            *title,
            address_store("scaling"),
            html.Div(id="scaling-problems"),
            html.Div(charts, id="scaling-charts"),
            html.Div(nothing, id="scaling-empty"),
        ]
    )


def records(context: Context, route: Route) -> ScalingTable:
    """Return the scaling records of the route's run, or of all runs."""
    if not route.run:
        return context.scaling([row.info for row in context.folder.rows()])
    run = context.run(route)
    return context.scaling([run]) if run else ScalingTable(())


def table_rows(series: tuple[ScalingSeries, ...]) -> list[list[str]]:
    """Return one row, as `HEAD` names its cells, for every measured point."""
    rows = []
    for one in series:
        for point in one.points:
            rate = f"{number(point.rate.median)} {one.unit} ({number(point.rate.low)} to {number(point.rate.high)})"
            known = point.efficiency
            share = f"{percent(known.median)} ({percent(known.low)} to {percent(known.high)})" if known else "–"
            cells = [one.label, count(point.ranks), count(point.hosts), rate, share, one.facts]
            rows.append([*cells, moment(one.created_unix_ns)])
    return rows


def address(pathname: str | None, found: ScalingTable, chosen: list[str]) -> dict[str, str]:
    """Return the address of the view: the chosen series, nothing when all are."""
    everything = len(chosen) == len(found.series)
    query = "" if everything or not chosen else urlencode({"series": ",".join(quote(one, safe="") for one in chosen)})
    return {"path": pathname or "/", "search": query}


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(
        Output("scaling-problems", "children"),
        Output("scaling-rate", "figure"),
        Output("scaling-efficiency", "figure"),
        Output("scaling-table", "children"),
        Output("scaling-charts", "style"),
        Output("scaling-empty", "style"),
        Output("scaling-address", "data"),
        Input("stamp", "data"),
        Input("scheme", "data"),
        Input("scaling-series", "value"),
        State("url", "pathname"),
    )
    def fill(_stamp: str | None, scheme: str | None, chosen: list[str] | None, pathname: str | None) -> tuple[Any, ...]:
        route = context.route(pathname, "")
        if route.page != "scaling":
            return (no_update,) * 7
        found, look = records(context, route), scheme_of(scheme)
        series = found.chosen(chosen).series[:SERIES_LIMIT] if chosen else ()
        return (
            problems(found.problems),
            figures.rate(series, look),
            figures.efficiency(series, look),
            table(HEAD, table_rows(series)),
            shown(found.series),
            shown(not found.series),
            address(pathname, found, chosen or []),
        )

    follow_address(app, "scaling")
