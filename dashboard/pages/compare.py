"""Runs side by side: what changed from one to the other, how step times are spread, one timeline under the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import dash_mantine_components as dmc
import numpy as np
from dash import Dash, Input, Output, State, dcc, html, no_update

from ringtune.dashboard import routes, theme
from ringtune.dashboard.components import (
    address_store,
    badge,
    card,
    empty,
    follow_address,
    graph,
    problems,
    shown,
    stat,
    stats,
)
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import compare
from ringtune.dashboard.data.compare import Beside, Contrast
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.data.timeline import Query, TimelineIndex
from ringtune.dashboard.data.timeline_shapes import Window
from ringtune.dashboard.figures import compare as figures
from ringtune.dashboard.pages import timeline_state
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import Scheme, scheme_of
from ringtune.dashboard.units import count, duration, moment, plain, signed_percent
from ringtune.timeline.comparison import Change

MOST_RUNS = 8
ROWS = 60
SETTING_ROWS = 100
LANE_RANKS = 2
"""Runs of more ranks are drawn as one line a rank."""

_WORDS = {"compute": "computing, ", "waiting": "waiting, "}
VERDICT_COLORS = {"slower": "red", "faster": "teal", "same": "gray"}
HEAD = ("What", "A, a step", "B, a step", "Difference", "95 % interval", "p", "B is")


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
            dmc.Group([selects[0], swap, selects[1], more], gap="sm", align="flex-end", mb="md"),
            html.Div(id="compare-problems"),
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


def stat_cards(found: Contrast) -> list[dmc.Card]:
    """Return the numbers at the top of the page."""
    step = found.step
    if step is None:
        return []
    share = signed_percent(step.difference_ns / step.first_ns) if step.first_ns else ""
    return [
        stat("Step of A, mean", duration(step.first_ns), f"{count(found.steps[0])} steps"),
        stat("Step of B, mean", duration(step.second_ns), f"{count(found.steps[1])} steps"),
        stat("Difference", signed(step.difference_ns), f"{interval(step)} (95 %)"),
        stat("B is", step.verdict, share if step.verdict != "same" else "as far as these steps tell"),
    ]


def signed(ns: float) -> str:
    """Return a difference of times with its sign."""
    return ("+" if ns > 0 else "") + duration(ns)


def interval(change: Change) -> str:
    """Return the interval of a difference."""
    return f"{signed(change.low_ns)} to {signed(change.high_ns)}"


def changes_table(found: Contrast) -> Any:
    """Return the differences as a table, worst first, with what just one run has below."""
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(word) for word in HEAD]))
    rows = [dmc.TableTr([dmc.TableTd(cell) for cell in _cells(change)]) for change in found.changes[:ROWS]]
    said = [f"From the {found.source}."]
    if len(found.changes) > ROWS:
        said.append(f"{count(len(found.changes) - ROWS)} more changed less.")
    for run, only in zip("AB", found.only, strict=True):
        if only:
            more = f" and {len(only) - 6} more" if len(only) > 6 else ""
            said.append(f"Only in {run}: {', '.join(plain(one, 60) for one in only[:6])}{more}.")
    return [
        dmc.TableScrollContainer(
            dmc.Table([head, dmc.TableTbody(rows)], verticalSpacing=5, className="rt-table", stickyHeader=True),
            minWidth=500,
            maxHeight=520,
        ),
        dmc.Text(" ".join(said), size="xs", c="dimmed", mt=6),
    ]


def thing(change: Change) -> str:
    """Return what changed, in words."""
    if change.kind == "step":
        return "step"
    if change.kind in ("stage", "tensor"):
        stage, _, tensor = change.what.partition(" ")
        word = theme.PHASES[stage].label.lower() if stage in theme.PHASES else stage
        return f"{word} of {tensor}" if tensor else f"{word}, all tensors"
    return f"{_WORDS.get(change.kind, '')}{change.what}"


def _cells(change: Change) -> list[Any]:
    share = f" ({signed_percent(change.difference_ns / change.first_ns)})" if change.first_ns else ""
    return [
        plain(thing(change), 80),
        duration(change.first_ns),
        duration(change.second_ns),
        f"{signed(change.difference_ns)}{share}",
        interval(change),
        "< 0.0001" if change.p_value < 1e-4 else f"{change.p_value:.4f}",
        dmc.Badge(change.verdict, color=VERDICT_COLORS[change.verdict], variant="light", radius="sm", tt="none"),
    ]


def beside_table(found: Sequence[Beside], prefix: str) -> list[Any]:
    """Return the runs beside A; nothing for two, of which the numbers above tell."""
    if len(found) < 3:
        return []
    head = dmc.TableThead(
        dmc.TableTr([dmc.TableTh(word) for word in ("Run", "Status", "Ranks", "Steps", "Mean step", "Against A", "")])
    )
    rows = []
    for one in found:
        link = dcc.Link(one.run.name, href=routes.href(Route("overview", one.run.id), prefix), className="rt-link")
        change = one.change
        cells = [link, badge(one.run.status), count(one.run.ranks), count(one.steps), duration(one.mean_ns)]
        cells += [f"{signed(change.difference_ns)} ({interval(change)})", change.verdict] if change else ["–", ""]
        rows.append(dmc.TableTr([dmc.TableTd(cell) for cell in cells]))
    body = dmc.Table([head, dmc.TableTbody(rows)], verticalSpacing=5, className="rt-table")
    return [card("All of them", dmc.TableScrollContainer(body, minWidth=500), "Differences with 95 % intervals.")]


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
    indexes = [_index(context, run) for run in runs]
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


def _index(context: Context, run: RunInfo) -> TimelineIndex | str:
    try:
        index = context.timeline(run)
    except Unreadable as error:
        return str(error)
    return index if isinstance(index, TimelineIndex) else "its timeline is being prepared; open it to see how far it is"


def _window(index: TimelineIndex | str, step: object) -> Window | None:
    """Return the window of the step asked for, else of one in the middle, which is past all warm-up."""
    if not isinstance(index, TimelineIndex):
        return None
    return index.step_window(_shown_step(index, step))


def _shown_step(index: TimelineIndex, step: object) -> int:
    first, last = index.step_range() or (0, 0)
    return int(step) if isinstance(step, (int, float)) else (first + last + 1) // 2


def settings_card(first: RunInfo, second: RunInfo) -> Any:
    """Return what was set differently."""
    rows = compare.settings(first, second)
    if not rows:
        return card(
            "Set differently", dmc.Text("Nothing: command, knobs, versions and variables are equal.", size="sm")
        )
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(word) for word in ("Setting", "A", "B")]))
    body = [
        dmc.TableTr([dmc.TableTd(plain(cell, 400), className="rt-wrap") for cell in row]) for row in rows[:SETTING_ROWS]
    ]
    return card("Set differently", dmc.Table([head, dmc.TableTbody(body)], layout="fixed", verticalSpacing=6))


_STILL = (("head", "children"), ("line", "figure"), ("still", "style"))


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""
    inputs = {
        "a": Input("compare-a", "value"),
        "b": Input("compare-b", "value"),
        "step": Input("compare-step", "value"),
        "stamp": Input("stamp", "data"),
        "scheme": Input("scheme", "data"),
    }

    @app.callback(
        output={
            "problems": Output("compare-problems", "children"),
            "stats": Output("compare-stats", "children"),
            "beside": Output("compare-beside", "children"),
            "spread": Output("compare-spread", "figure"),
            "table": Output("compare-table", "children"),
            "changes": Output("compare-changes", "style"),
            "settings": Output("compare-settings", "children"),
            "charts": Output("compare-charts", "style"),
            "empty": Output("compare-empty", "children"),
            "address": Output("compare-address", "data"),
        },
        inputs={"asked": {**inputs, "also": Input("compare-also", "value")}, "pathname": State("url", "pathname")},
    )
    def fill(asked: dict[str, Any], pathname: str | None) -> dict[str, Any]:
        place = address(pathname, asked)
        runs = chosen(context, [asked["a"], asked["b"], *(asked["also"] or [])])
        first, second = runs[:2]
        if first is None or second is None or first.id == second.id:
            return {**dict.fromkeys(_FILLED, no_update), "problems": [], "charts": shown(False),
                    "empty": nothing(context), "address": place}  # fmt: skip
        return {**_filled(context, [run for run in runs if run], scheme_of(asked["scheme"])), "address": place}

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


def _filled(context: Context, runs: list[RunInfo], scheme: Scheme) -> dict[str, Any]:
    """Return what the page shows of runs, the first two of which are A and B."""
    samples = [(run, compare.step_samples(context.steps(run))) for run in runs]
    said: list[str] = []
    try:
        found = context.contrast(runs[0], runs[1])
    except Unreadable as error:
        found, said = None, [str(error)]
    labels = [f"{name} · {run.name}" for name, run in zip(["A", "B", *map(str, range(3, 9))], runs, strict=False)]
    walls = [(label, one.get(compare.STEP, np.zeros(0))) for label, (_, one) in zip(labels, samples, strict=True)]
    if found is None and not said:
        said = ["One of the runs has fewer than two steps: there is nothing to compare yet"]
    return {
        "problems": problems(said),
        "stats": stats(stat_cards(found)) if found else [],
        "beside": beside_table(compare.beside(samples), context.prefix),
        "spread": figures.spreads(compare.spreads(walls), scheme),
        "table": changes_table(found) if found else [],
        "changes": shown(found),
        "settings": settings_card(runs[0], runs[1]),
        "charts": shown(True),
        "empty": [],
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
