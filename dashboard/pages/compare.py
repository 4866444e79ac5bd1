"""Runs side by side: what changed from one to the other, how step times are spread, one timeline under the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlencode

import dash_mantine_components as dmc
import numpy as np
from dash import Dash, Input, Output, State, dcc, html, no_update

from ringtune.dashboard import routes
from ringtune.dashboard.components import (
    address_store,
    age,
    card,
    drawn_store,
    empty,
    follow_address,
    graph,
    problems,
    shown,
    stats,
)
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import compare, steps
from ringtune.dashboard.data.compare import Spread
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.data.steps import Floats
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.figures import compare as figures
from ringtune.dashboard.pages import timeline_state
from ringtune.dashboard.pages.compare_tables import beside_table, changes_table, settings_card, stat_cards
from ringtune.dashboard.pages.overview_failure import brief
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import Scheme, scheme_of
from ringtune.dashboard.units import age as ago
from ringtune.dashboard.units import count, duration, moment, plain

MOST_RUNS = 8
LANE_RANKS = 2
"""Runs of more ranks are drawn as one line a rank."""


def layout(context: Context, route: Route) -> html.Div:
    """Return the page; its callbacks fill it."""
    known = [row.info for row in context.folder.rows()]
    options = [{"value": run.id, "label": _label(run)} for run in known]
    ids = {run.id for run in known}
    chosen = {name: route.query.get(name, "") for name in ("a", "b")}
    also = [one for one in route.list("also") if one in ids][: MOST_RUNS - 2]
    selects = [_select(name, options, chosen[name] if chosen[name] in ids else None) for name in ("a", "b")]
    more = dmc.MultiSelect(
        id="compare-also", data=options, value=also, label="Beside them", searchable=True, clearable=True,
        maxValues=MOST_RUNS - 2, placeholder="More runs", style={"flex": 1, "minWidth": 200},
    )  # fmt: skip
    swap = dmc.Button("⇄", id="compare-swap", variant="default", px=10, **{"aria-label": "Swap A and B"})
    return html.Div(
        [
            dmc.Title("Compare", order=2, className="rt-run-name", mb="md"),
            address_store("compare"),
            dcc.Store(id=drawn_store("compare")),
            age("compare"),
            dmc.Group([selects[0], swap, selects[1], more], gap="sm", align="flex-end", mb="md"),
            html.Div(id="compare-problems"),
            html.Div(id="compare-ending"),
            html.Div(_charts(route), id="compare-charts", style=shown(all(chosen[name] in ids for name in chosen))),
            html.Div(id="compare-empty"),
        ]
    )


def _label(run: RunInfo) -> str:
    return f"{run.name} · {moment(run.created_unix_ns)}" if run.created_unix_ns else plain(run.id)


def _select(name: str, options: list[dict[str, str]], value: str | None) -> dmc.Select:
    return dmc.Select(
        id=f"compare-{name}",
        data=options,
        value=value,
        label=f"Run {name.upper()}",
        searchable=True,
        placeholder="Choose a run",
        style={"flex": 1, "minWidth": 220},
    )


def _charts(route: Route) -> dmc.Stack:
    step = dmc.NumberInput(
        id="compare-step",
        value=route.number("step") if route.number("step") is not None else "",
        placeholder="Step",
        min=0,
        w=120,
        size="xs",
        debounce=500,
        **{"aria-label": "Step of the timelines"},
    )
    timelines = [
        html.Div([html.Div(id=f"compare-head-{n}"), html.Div(graph(f"compare-line-{n}", 260), id=f"compare-still-{n}")])
        for n in ("a", "b")
    ]
    lines = dmc.Stack([dmc.Group([dmc.Text("Step", size="sm"), step], gap="xs"), *timelines], gap="xs")
    return dmc.Stack(
        [
            html.Div(id="compare-stats"),
            html.Div(id="compare-beside"),
            card("Step times", graph("compare-spread", 300), "Share of each run's steps; upright lines: medians."),
            html.Div(
                card("What changed", html.Div(id="compare-table"), "Worst first; times are a step's."),
                id="compare-changes",
            ),
            html.Div(card("One step, one under the other", lines, "Both on the same scale."), id="compare-timelines"),
            html.Div(id="compare-settings"),
        ],
        gap="md",
    )


def address(pathname: str | None, asked: dict[str, Any]) -> dict[str, str]:
    """Return the address of the view."""
    query = {name: str(asked[name]) for name in ("a", "b") if asked.get(name)}
    if asked.get("also"):
        query["also"] = ",".join(quote(one, safe="") for one in asked["also"])
    if asked.get("step") not in (None, ""):
        query["step"] = str(int(asked["step"]))
    return {"path": pathname or "/", "search": urlencode(query)}


@dataclass(frozen=True)
class Still:
    """A run's timeline as a picture: the link to it, and the figure; or a sentence why there is none, and None."""

    head: Any
    figure: Any


def stills(context: Context, runs: tuple[RunInfo, RunInfo], step: object, scheme: Scheme) -> tuple[Still, Still] | None:
    """Return one step of both runs on the same scale; None where neither recorded a timeline."""
    with ExitStack() as stack:
        # A fixed order prevents deadlocks: two running jobs are locked while they are drawn.
        alone = {run.id: run for run in sorted(runs, key=lambda run: run.id)}
        held = {name: stack.enter_context(_index(context, run)) for name, run in alone.items()}
        indexes = [held[run.id] for run in runs]
        windows = [_window(index, step) for index in indexes]
        longest = max((window.length_ns for window in windows if window), default=0.0)
        if not longest:
            return None
        found = []
        for name, run, index, window in zip("AB", runs, indexes, windows, strict=True):
            if isinstance(index, TimelineIndex) and window is not None:
                wide = Window(window.begin_ns, window.begin_ns + longest)
                view = index.view(Query(wide, compact=len(index.ranks) > LANE_RANKS))
                href = timeline_state.address("", wide, {})["search"]
                link = dcc.Link(
                    f"{name}: {run.name}, step {_shown_step(index, step)}",
                    href=f"{routes.href(Route('timeline', run.id), context.prefix)}?{href}",
                    className="rt-link",
                )
                found.append(Still(link, figures.still(index, view, scheme)))
            else:
                said = index if isinstance(index, str) else "no timeline of this step was recorded"
                found.append(Still(dmc.Text(f"{name}: {plain(said, 300)}", size="sm", c="dimmed"), None))
        return found[0], found[1]


@contextmanager
def _index(context: Context, run: RunInfo) -> Iterator[TimelineIndex | str]:
    with ExitStack() as stack:
        try:
            index = stack.enter_context(context.timelines.watched(run))
        except Unreadable as error:
            yield str(error)
            return
        waits = "its timeline is being prepared; open it to see the progress"
        yield index if isinstance(index, TimelineIndex) else waits


def _window(index: TimelineIndex | str, step: object) -> Window | None:
    """Return the window of the step asked for, else of one in the middle, which is past all warm-up."""
    if not isinstance(index, TimelineIndex) or index.step_range() is None:
        return None
    return index.step_window(_shown_step(index, step))


def _shown_step(index: TimelineIndex, step: object) -> int:
    first, last = index.step_range() or (0, 0)
    return int(step) if isinstance(step, (int, float)) else (first + last + 1) // 2


_EDGES = 4 * compare.BINS


def _drawn(runs: list[RunInfo], found: Sequence[Spread], pathname: str | None) -> dict[str, Any] | None:
    """Return what the next polls need to know to draw spreads anew; None where there are none."""
    if not found:
        return None
    about = {"page": pathname, "number": time.monotonic_ns(), "ids": [run.id for run in runs]}
    return {**about, "labels": [one.label for one in found], "edges_ns": found[0].edges_ns.tolist()}


def news(context: Context, _route: Route, before: dict[str, Any]) -> dict[str, Any]:
    """Return how running jobs among those compared do now; `before` comes from the browser, which may send anything."""
    ids, labels, edges = (before.get(name) for name in ("ids", "labels", "edges_ns"))
    if not isinstance(ids, list) or not isinstance(labels, list) or not isinstance(edges, list):
        return {}
    if not 1 < len(edges) < _EDGES or not all(isinstance(one, (int, float)) for one in edges):
        return {}
    if any(low >= high for low, high in pairwise(edges)):
        return {}
    runs = chosen(context, [one for one in ids if isinstance(one, str)])
    names = dict(zip((run.id for run in runs if run), _labels([run for run in runs if run]), strict=False))
    live = [run for run in runs if run is not None and run.status == "live"]
    if len(names) != len(labels) or list(names.values()) != labels:
        return {"anew": before.get("number")}
    if not live:
        return {}
    walls = [(run, compare.newest_walls(context.runs.steps(run))) for run in live]
    bins = np.array(edges, dtype=np.float64)
    traces = [figures.spread_now(compare.spread_over(names[run.id], one, bins))[0] for run, one in walls if len(one)]
    shown_ = [{"graph": "compare-spread", "traces": traces}] if traces else []
    said = age_words(context, runs, walls)
    grown = {"number": before.get("number"), "figures": shown_, "drawn": before}
    return {"grown": grown, "texts": [["compare-age", said]]}


def age_words(context: Context, runs: Sequence[RunInfo | None], walls: Sequence[tuple[RunInfo, Floats]]) -> str:
    """Return the state of running jobs and the age of the differences in words; nothing where nothing runs."""
    said = []
    for run, newest in walls:
        if run.status == "live" and len(newest) and (known := steps.newest(context.runs.steps(run), 1)) is not None:
            name = _name([one.id if one else "" for one in runs].index(run.id))
            mean = duration(float(newest.mean()))
            said.append(
                f"{name} is running: step {count(known[0])}, the newest {count(len(newest))} take {mean} (mean)."
            )
    made = [context.live.made_s(run, "contrast") for run, _ in walls]
    ages = [one[0] for one in made if one is not None]
    if said and ages:
        said.append(f"Differences with their intervals and tests are of {ago(max(ages))} ago.")
    return " ".join(said)


def _name(place: int) -> str:
    return "AB"[place] if place < 2 else str(place + 1)


_STILL = (("head", "children"), ("line", "figure"), ("still", "style"))


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""
    inputs = {
        "a": Input("compare-a", "value"),
        "b": Input("compare-b", "value"),
        "step": Input("compare-step", "value"),
        "slow": Input("slow", "data"),
        "scheme": Input("scheme", "data"),
    }

    @app.callback(
        output={
            "problems": Output("compare-problems", "children"),
            "ending": Output("compare-ending", "children"),
            "stats": Output("compare-stats", "children"),
            "beside": Output("compare-beside", "children"),
            "spread": Output("compare-spread", "figure"),
            "table": Output("compare-table", "children"),
            "changes": Output("compare-changes", "style"),
            "settings": Output("compare-settings", "children"),
            "charts": Output("compare-charts", "style"),
            "empty": Output("compare-empty", "children"),
            "address": Output("compare-address", "data"),
            "age": Output("compare-age", "children"),
            "drawn": Output(drawn_store("compare"), "data"),
        },
        inputs={"asked": {**inputs, "also": Input("compare-also", "value")}, "pathname": State("url", "pathname")},
    )
    def fill(asked: dict[str, Any], pathname: str | None) -> dict[str, Any]:
        place = address(pathname, asked)
        runs = chosen(context, [asked["a"], asked["b"], *(asked["also"] or [])])
        first, second = runs[:2]
        if first is None or second is None or first.id == second.id:
            said = {"charts": shown(False), "empty": nothing(context), "age": "", "drawn": None}
            rest = dict.fromkeys(_FILLED, no_update)
            return {**rest, **said, "problems": [], "ending": [], "address": place}
        with context.cpu_budget.drawing(Route("compare")):
            found = _filled(context, [run for run in runs if run], scheme_of(asked["scheme"]), pathname)
        return {**found, "address": place}

    @app.callback(
        *(Output(f"compare-{part}-{n}", what) for n in "ab" for part, what in _STILL),
        Output("compare-timelines", "style"),
        inputs={"asked": inputs},
    )
    def draw(asked: dict[str, Any]) -> tuple[Any, ...]:
        first, second = chosen(context, [asked["a"], asked["b"]])
        if first is None or second is None:
            return (no_update,) * 7
        found = stills(context, (first, second), asked["step"], scheme_of(asked["scheme"]))
        if found is None:
            return (*(no_update,) * 6, shown(False))
        parts = [(one.head, one.figure or no_update, shown(one.figure)) for one in found]
        return (*parts[0], *parts[1], shown(True))

    @app.callback(
        Output("compare-a", "value"),
        Output("compare-b", "value"),
        Input("compare-swap", "n_clicks"),
        State("compare-a", "value"),
        State("compare-b", "value"),
        prevent_initial_call=True,
    )
    def swap(_clicks: int | None, first: str | None, second: str | None) -> tuple[str | None, str | None]:
        return second, first

    follow_address(app, "compare")


_FILLED = ("stats", "beside", "spread", "table", "changes", "settings")


def chosen(context: Context, ids: Sequence[str | None]) -> list[RunInfo | None]:
    """Return the runs with these ids, each once after the first two."""
    known = list(dict.fromkeys(ids[2:]))
    wanted = [*ids[:2], *(one for one in known if one not in ids[:2])]
    return [context.run(Route("overview", one)) if one else None for one in wanted[:MOST_RUNS]]


def _labels(runs: Sequence[RunInfo]) -> list[str]:
    return [f"{_name(place)} · {run.name}" for place, run in enumerate(runs)]


def _filled(context: Context, runs: list[RunInfo], scheme: Scheme, pathname: str | None) -> dict[str, Any]:
    """Return what the page shows of runs, the first two of which are A and B."""
    samples = [(run, compare.step_samples(context.runs.steps(run))) for run in runs]
    said: list[str] = []
    try:
        found = context.timelines.contrast(runs[0], runs[1])
    except Unreadable as error:
        found, said = None, [str(error)]
    walls = [
        (label, one.get(compare.STEP, np.zeros(0))) for label, (_, one) in zip(_labels(runs), samples, strict=True)
    ]
    spread = compare.spreads(walls)
    newest = [(run, one) for run, (_, one) in zip(runs, walls, strict=True) if run.status == "live"]
    if found is None and not said:
        said = ["One of the runs has fewer than two steps: there is nothing to compare yet"]
    return {
        "problems": problems(said),
        "ending": brief(context, *runs[:2]),
        "stats": stats(stat_cards(found)) if found else [],
        "beside": beside_table(compare.beside(samples), context.prefix),
        "spread": figures.spreads(spread, scheme),
        "table": changes_table(found) if found else [],
        "changes": shown(found),
        "settings": settings_card(runs[0], runs[1]),
        "charts": shown(True),
        "empty": [],
        "age": age_words(context, runs, newest),
        "drawn": _drawn(runs, spread, pathname),
    }


def nothing(context: Context) -> Any:
    """Return what to do when there are no two runs to compare."""
    if len(context.folder.paths()) < 2:
        return empty(
            "There are no two runs yet",
            f"Every job that ringtune starts leaves a folder here ({context.folder.root}). Start one more:",
            "ringtune run -np 2 --timeline trace.json python train.py",
        )
    return empty(
        "Choose two runs", "Choose two different runs above, or mark them in the table of runs and press Compare."
    )
