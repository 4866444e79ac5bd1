"""What if the job had more ranks, another network, other knobs: the model's answer while the dials are turned."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import dash_mantine_components as dmc
import numpy as np
from dash import Dash, Input, Output, State, dcc, html, no_update

from ringtune.dashboard.components import (
    address_store,
    age,
    card,
    empty,
    follow_address,
    graph,
    problems,
    stat,
    stats,
    table,
)
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import steps, whatif
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.timeline.prepare import Preparing
from ringtune.dashboard.data.whatif import DIALS, Advice, Baseline, Dial, Outlook
from ringtune.dashboard.figures import whatif as figures
from ringtune.dashboard.pages.progress import progress
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import scheme_of
from ringtune.dashboard.units import age as ago
from ringtune.dashboard.units import count, duration, number, percent, signed_percent
from ringtune.timeline.units import times_in_one_unit
from ringtune.tuner.model.calibrate import Model
from ringtune.tuner.model.questions import WIRE, Value, percents

_NOTHING = (
    "A prediction needs a timeline",
    "The model learns from one when gradients became ready, how long ranks computed and how fast batches travelled. "
    "A few dozen steps are enough. Start the job with:",
    "ringtune run -np 2 --timeline trace.json python train.py",
)
WIRE_WORDS = {"none": "float32", "fp16": "fp16", "bf16": "bf16"}
HEAD = ("One more change", "Saves of a step", "Step", "Efficiency")
_GROUPS = (
    ("Size", ("ranks", "slots")),
    ("Network", ("gbit", "us")),
    ("Computing", ("straggler", "compute")),
    ("Knobs", ("fusion", "cycle")),
)


def layout(context: Context, route: Route) -> html.Div:
    """Return the page; its callback answers. Dials stand where the address puts them."""
    return html.Div(_content(_base(context, route), route), id="whatif-page")


def _content(found: Baseline | Preparing | str | None, route: Route) -> list[Any]:
    """Return the dials, or why there are none (yet); then the page looks again when the run has changed."""
    if isinstance(found, Baseline) and found.doubt:
        found = found.doubt
    known = dcc.Store(id="whatif-known", data=isinstance(found, Baseline))
    if isinstance(found, Baseline):
        return [known, address_store("whatif"), _body(found.model, route)]
    if isinstance(found, Preparing):
        return [known, html.Div(progress(found))]
    return [known, *(problems([found]) if found else [empty(*_NOTHING)])]


def _base(context: Context, route: Route) -> Baseline | Preparing | str | None:
    """Return the model of the route's run, how far its timeline is, why there is none, or None without a timeline."""
    run = context.run(route)
    if run is None:
        return None
    try:
        return context.timelines.baseline(run)
    except Unreadable as error:
        return str(error)


def _body(model: Model, route: Route) -> html.Div:
    found = whatif.dials(model, route.query)
    wire = route.query.get("wire", "none")
    by_name = {dial.name: dial for dial in found}
    controls = [_group(title, [by_name[name] for name in names]) for title, names in _GROUPS]
    choice = dmc.SegmentedControl(
        id="whatif-wire",
        data=[{"value": key, "label": WIRE_WORDS[key]} for key in WIRE],
        value=wire if wire in WIRE else "none",
        fullWidth=True,
        size="xs",
        **{"aria-label": "Gradients on the wire"},
    )
    controls.append(dmc.Stack([dmc.Text("Gradients on the wire", size="sm"), choice], gap=4))
    controls.append(dmc.Button("As it ran", id="whatif-reset", variant="default", size="xs", mt=4))
    held = {dial.name: {"values": list(dial.values), "start": dial.start, "origin": dial.origin} for dial in found}
    right = [
        html.Div(id="whatif-stats"),
        dmc.Text(id="whatif-note", size="sm", c="dimmed"),
        age("whatif"),
        card("Efficiency against ranks", graph("whatif-efficiency", 330), whatif.bands(model)),
        card("Where a step goes", graph("whatif-step", 190)),
        card(
            "What would help most",
            html.Div(id="whatif-advice"),
            "One more change on top of these settings; in brackets as the bands above.",
        ),
    ]
    return html.Div(
        [
            dcc.Store(id="whatif-dials", data=held),
            dmc.Grid(
                [
                    dmc.GridCol(card("What if", dmc.Stack(controls, gap="md")), span={"base": 12, "sm": 4, "xl": 3}),
                    dmc.GridCol(dmc.Stack(right, gap="md"), span={"base": 12, "sm": 8, "xl": 9}),
                ],
                gutter="md",
            ),
        ],
        id="whatif-charts",
    )


def _group(title: str, found: list[Dial]) -> dmc.Stack:
    return dmc.Stack([dmc.Text(title, size="xs", c="dimmed"), *map(_slider, found)], gap=8)


def _slider(dial: Dial) -> html.Div:
    head = dmc.Group(
        [
            dmc.Text(dial.label, size="sm"),
            dmc.Text(dial.text, id=f"whatif-{dial.name}-text", size="sm", c="dimmed"),
        ],
        justify="space-between",
        wrap="nowrap",
    )
    slider = dmc.Slider(
        id=f"whatif-{dial.name}",
        min=0,
        max=len(dial.values) - 1,
        step=1,
        value=dial.position,
        label=None,
        thumbLabel=dial.label,
        updatemode="drag",
        size="sm",
        marks=[{"value": dial.values.index(dial.start)}],
    )
    return html.Div([head, slider])


def turned(held: dict[str, Any], positions: dict[str, Any]) -> tuple[Dial, ...]:
    """Return the dials as the browser has them: positions on the values that the page was made with."""
    found = []
    for name in DIALS:
        values, start = tuple(held[name]["values"]), float(held[name]["start"])
        at = positions.get(name)
        position = min(max(int(at), 0), len(values) - 1) if isinstance(at, (int, float)) else values.index(start)
        found.append(Dial(name, "", values, start, values[position], str(held[name]["origin"])))
    return tuple(found)


def _interval(value: Value, text: Any) -> str:
    return f"{text(value.low)} to {text(value.high)}"


def stat_cards(outlook: Outlook) -> list[dmc.Card]:
    """Return the numbers at the top of the page."""
    answer, more = outlook.answer, outlook.throughput
    more_words = f"{_interval(more, number)}, of the job as it ran" if more.low < more.high else "as the job ran"
    return [
        stat("Efficiency", percent(answer.efficiency.value), _interval(answer.efficiency, percent)),
        stat("Step time", duration(answer.step_ns.value), _interval(answer.step_ns, duration)),
        stat("Throughput", f"× {number(more.value)}", more_words),
        _part("Exposed", answer.exposed_ns),
    ]


def _part(label: str, value: Value) -> dmc.Card:
    """Return the card of a part of a step; of one that cannot be told from none, how long it is at most."""
    if value.low == 0.0 < value.high:
        return stat(label, value.text(times_in_one_unit), "perhaps none")
    return stat(label, duration(value.value), _interval(value, duration))


def note(outlook: Outlook) -> str:
    """Return sentences on how far the model can be trusted: against the measured step, and what was not measured."""
    said, ran = [], outlook.as_ran
    if outlook.error is not None and outlook.measured_efficiency is not None:
        said.append(
            f"As it ran on {count(ran.ranks)} ranks the model gives {percent(ran.efficiency.value)} where "
            f"{percent(outlook.measured_efficiency)} was measured (step {signed_percent(outlook.error)})."
        )
    if outlook.host_bound:
        said.append("All ranks fit on one host: bandwidth and latency between hosts do not matter.")
    if outlook.assumed:
        said.append(outlook.assumed)
    return " ".join(said)


NOW_STEPS = 100


def age_words(context: Context, route: Route) -> str:
    """Return how a running job does now, and the age of the model; nothing where no job runs."""
    run = context.run(route)
    made = context.live.made_s(run, "baseline") if run is not None else None
    if run is None or made is None:
        return ""
    model = f"The model is of the newest steps of {ago(made[0])} ago; the next one is made in {ago(made[1])}."
    now = steps.newest(context.runs.steps(run), NOW_STEPS)
    if now is None:
        return f"The job is running. {model}"
    last, walls = now
    median = duration(float(np.median(walls)))
    return f"The job is running: step {count(last)}, the newest {count(len(walls))} took {median} (median). {model}"


def news(context: Context, route: Route, _before: dict[str, Any]) -> dict[str, Any]:
    """Return how the job does now, and the age of the model's answer."""
    return {"texts": [["whatif-age", age_words(context, route)]]}


def _saves(saved: Value) -> bool:
    return max(map(abs, (saved.low, saved.high))) >= 0.0005


def advice_rows(found: tuple[Advice, ...]) -> list[list[str]]:
    """Return the rows of the table of advice, as `HEAD` names its cells."""
    return [
        [
            one.label,
            one.saved.text(percents) if _saves(one.saved) else "nothing",
            one.answer.step_ns.text(times_in_one_unit),
            one.answer.efficiency.text(percents),
        ]
        for one in found
    ]


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""
    positions = {name: Input(f"whatif-{name}", "value") for name in DIALS}

    @app.callback(
        output={
            "stats": Output("whatif-stats", "children"),
            "note": Output("whatif-note", "children"),
            "efficiency": Output("whatif-efficiency", "figure"),
            "step": Output("whatif-step", "figure"),
            "advice": Output("whatif-advice", "children"),
            "address": Output("whatif-address", "data"),
            "age": Output("whatif-age", "children"),
            "texts": [Output(f"whatif-{name}-text", "children") for name in DIALS],
        },
        inputs={
            "positions": positions,
            "wire": Input("whatif-wire", "value"),
            "scheme": Input("scheme", "data"),
            "slow": Input("slow", "data"),
            "held": State("whatif-dials", "data"),
            "pathname": State("url", "pathname"),
        },
    )
    def answer(positions: dict[str, Any], wire: str | None, held: Any, **more: Any) -> dict[str, Any]:
        route = context.route(more["pathname"], "")
        base = _base(context, route)
        if not isinstance(base, Baseline) or base.doubt:
            nothing: dict[str, Any] = dict.fromkeys(
                ("stats", "note", "efficiency", "step", "advice", "address", "age"), no_update
            )
            # A running job's newest steps may be such that the model does not hold: what is shown is of older ones.
            if isinstance(base, Baseline):
                nothing["stats"] = problems([base.doubt])
            return {**nothing, "texts": [no_update] * len(DIALS)}
        found, look = turned(held, positions), scheme_of(more["scheme"])
        change = whatif.question(found, wire or "none")
        with context.cpu_budget.drawing(route):
            outlook, best = whatif.data(base, change), whatif.advice(base.model, change)
        asked = {**whatif.changed(found), **({"wire": wire} if wire and wire != "none" else {})}
        return {
            "stats": stats(stat_cards(outlook)),
            "note": note(outlook),
            "efficiency": figures.efficiency(outlook, look),
            "step": figures.step(outlook, look),
            "advice": table(HEAD, advice_rows(best)),
            "address": {"path": more["pathname"], "search": urlencode(asked)},
            "age": age_words(context, route),
            "texts": [dial.text for dial in found],
        }

    @app.callback(
        [*(Output(f"whatif-{name}", "value") for name in DIALS), Output("whatif-wire", "value")],
        Input("whatif-reset", "n_clicks"),
        State("whatif-dials", "data"),
        prevent_initial_call=True,
    )
    def reset(_clicks: int | None, held: dict[str, Any]) -> list[Any]:
        return [*(held[name]["values"].index(held[name]["start"]) for name in DIALS), "none"]

    @app.callback(
        Output("whatif-page", "children"),
        Input("stamp", "data"),
        State("whatif-known", "data"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def appear(_stamp: str | None, known: bool, pathname: str | None, search: str | None) -> Any:
        route = context.route(pathname, search)
        return no_update if known else _content(_base(context, route), route)

    follow_address(app, "whatif")
