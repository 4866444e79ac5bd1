"""Does it scale? Throughput and efficiency against ranks, for one run or for all."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html, no_update

from ringtune.dashboard.components import address_store, card, empty, follow_address, graph, problems, shown, table
from ringtune.dashboard.context import Context
from ringtune.dashboard.data.scaling import ScalingSeries, ScalingTable
from ringtune.dashboard.data.scaling_runs import PREFIX
from ringtune.dashboard.figures import scaling as figures
from ringtune.dashboard.pages import scaling_series as parts
from ringtune.dashboard.pages.scaling_series import Wish
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import scheme_of
from ringtune.dashboard.units import count, moment, number, percent

SERIES_LIMIT = 8
KINDS = {"weak": "Weak scaling", "strong": "Strong scaling"}
_RATE_HINT = (
    "Of the whole job. Dotted: its ideal; dashed: predicted. Weak: each rank keeps its work; strong: the job does. "
    "Runs say which when started with --tag batch=N (of a rank) or --tag global-batch=N."
)
HEAD = ("Measurement", "Ranks", "Hosts", "Throughput", "Scaling efficiency", "When", "What")


def layout(context: Context, route: Route) -> html.Div:
    """Return the page; its callback fills it. Without a run it shows the records of all runs."""
    found = parts.measured(context, route)
    options = [{"value": one.id, "label": f"{one.label} ({_about(one)})"} for one in found.series]
    asked = route.list("series")
    chosen = [one.id for one in found.chosen(asked).series][:SERIES_LIMIT] if asked else usual(found)
    unsaid = any(not family.kind for family in parts.groups(context, route).values())
    select = dmc.MultiSelect(
        id="scaling-series",
        data=options,
        value=chosen,
        label="Measurements",
        searchable=True,
        clearable=True,
        maxValues=SERIES_LIMIT,
        style={"flex": 1, "minWidth": 260, **shown(len(options) > 1 or not route.run)},
    )
    kind = dmc.SegmentedControl(
        id="scaling-kind",
        data=[{"value": key, "label": word} for key, word in KINDS.items()],
        value="strong" if route.query.get("scaling") == "strong" else "weak",
        size="sm",
        style=shown(unsaid),
        **{"aria-label": "What runs of one name have in common, where they do not say"},
    )
    predict = dmc.Switch(
        id="scaling-predict", label="Prediction", checked=route.query.get("predict") != "0", size="sm", mb=8
    )
    charts = dmc.Stack(
        [
            dmc.Group([select, kind, predict], gap="md", align="flex-end"),
            dmc.SimpleGrid(
                [
                    card("Throughput", graph("scaling-rate", 380), _RATE_HINT),
                    card("Efficiency", graph("scaling-efficiency", 380), "Throughput as a share of ideal scaling."),
                ],
                cols={"base": 1, "md": 2},
                spacing="md",
            ),
            html.Div(
                card(
                    "Where efficiency goes",
                    graph("scaling-factors", 320),
                    "Of runs with a timeline: factors of parallel efficiency (the share of a step in which ranks "
                    "compute, beside the run of one rank), each takes its share off 100 %. Measured in the timeline, "
                    "so it may differ from the efficiency by throughput above.",
                ),
                id="scaling-pop",
                style=shown(False),
            ),
            card("Measured", html.Div(id="scaling-table")),
        ],
        gap="md",
    )
    nothing = empty(
        "No scaling measured yet" if not route.run else "This run holds no scaling record",
        "The benchmark trains one model on growing numbers of ranks and records images per second. Run it, or run one "
        "script on several numbers of ranks under one --name:",
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


def usual(found: ScalingTable) -> list[str]:
    """Return the ids of the series that are shown when none is asked for: those that share the first one's unit."""
    return [one.id for one in found.series if one.unit == found.series[0].unit][:SERIES_LIMIT]


def _about(one: ScalingSeries) -> str:
    if one.id.startswith(PREFIX):
        ranks = [count(point.ranks) for point in one.points]
        return f"{', '.join(ranks)} rank{'s' if ranks != ['1'] else ''}"
    return one.facts


def table_rows(series: tuple[ScalingSeries, ...]) -> list[list[str]]:
    """Return one row, as `HEAD` names its cells, for every measured point."""
    rows = []
    for one in series:
        for point in one.points:
            rate = f"{number(point.rate.median)} {one.unit} ({number(point.rate.low)} to {number(point.rate.high)})"
            known = point.efficiency
            share = f"{percent(known.median)} ({percent(known.low)} to {percent(known.high)})" if known else "–"
            cells = [one.label, count(point.ranks), count(point.hosts), rate, share]
            rows.append([*cells, moment(one.created_unix_ns), one.facts])
    return rows


def address(pathname: str | None, found: ScalingTable, chosen: list[str], wish: Wish) -> dict[str, str]:
    """Return the address of the view: the chosen series, and what is not as usual."""
    query = {"scaling": "strong"} if wish.strong else {}
    if not wish.predict:
        query["predict"] = "0"
    if chosen and chosen != usual(found):
        query["series"] = ",".join(quote(one, safe="") for one in chosen)
    return {"path": pathname or "/", "search": urlencode(query)}


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(
        Output("scaling-problems", "children"),
        Output("scaling-rate", "figure"),
        Output("scaling-efficiency", "figure"),
        Output("scaling-table", "children"),
        Output("scaling-factors", "figure"),
        Output("scaling-pop", "style"),
        Output("scaling-charts", "style"),
        Output("scaling-empty", "style"),
        Output("scaling-address", "data"),
        inputs={
            "chosen": Input("scaling-series", "value"),
            "kind": Input("scaling-kind", "value"),
            "predict": Input("scaling-predict", "checked"),
            "stamp": Input("stamp", "data"),
            "scheme": Input("scheme", "data"),
            "pathname": State("url", "pathname"),
        },
    )
    def fill(chosen: list[str] | None, kind: str | None, predict: bool | None, **more: Any) -> tuple[Any, ...]:
        route, wish = context.route(more["pathname"], ""), Wish(kind == "strong", bool(predict))
        if route.page != "scaling":
            return (no_update,) * 9
        found, known = parts.measured(context, route, strong=wish.strong), parts.groups(context, route)
        series = found.chosen(chosen).series[:SERIES_LIMIT] if chosen else ()
        series, look = parts.with_predictions(context, series, known, wish), scheme_of(more["scheme"])
        lost, why_not = parts.factors(context, series, known)
        return (
            problems([*found.problems, *why_not]),
            figures.rate(series, look),
            figures.efficiency(series, look),
            table(HEAD, [[*cells, html.Div(facts, className="rt-sentence")] for *cells, facts in table_rows(series)]),
            figures.factors(lost, look),
            shown(lost),
            shown(found.series),
            shown(not found.series),
            address(more["pathname"], found, chosen or [], wish),
        )

    follow_address(app, "scaling")
