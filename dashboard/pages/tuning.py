"""The history of a tuning session: what was tried, what was confirmed, what was decided."""

from __future__ import annotations

import time
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update

from ringtune.dashboard import routes
from ringtune.dashboard.components import (
    SELECTABLE,
    WRAPPING,
    address_store,
    age,
    card,
    drawn_numbers,
    drawn_store,
    empty,
    follow_place,
    graph,
    per_device,
    problems,
    shown,
    table,
)
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import tuning
from ringtune.dashboard.data.analysis import Analysis
from ringtune.dashboard.data.posterior import Learned
from ringtune.dashboard.data.timeline.prepare import Preparing
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.data.tuning import SOURCES, TuningHistory
from ringtune.dashboard.figures import tuning_plane, tuning_settings, tuning_trials
from ringtune.dashboard.pages.stragglers import analysis_of
from ringtune.dashboard.pages.timeline_state import address
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import scheme_of
from ringtune.dashboard.units import count, duration, plain, size
from ringtune.timeline.units import several

_NUMBER = {"type": "rightAligned", "cellClass": "rt-number ag-right-aligned-cell"}


def layout(_context: Context, _route: Route) -> html.Div:
    """Return the page; its callback fills it."""
    charts = dmc.Stack(
        [
            html.Div(id="tuning-words"),
            dmc.SimpleGrid(
                [
                    card("Trials", graph("tuning-trials", 340), "Median step time of each setting with its interval."),
                    card(
                        "Settings tried",
                        graph("tuning-plane", 340),
                        "Points are trials; the surface between them is predicted from them (a Gaussian process).",
                    ),
                    card(
                        "Time lost so far",
                        graph("tuning-lost", 300),
                        "What the search cost against training with the default.",
                    ),
                    card(
                        "Which knob matters",
                        graph("tuning-importance", 300),
                        "Shares of the differences between settings (functional ANOVA, by Optuna).",
                    ),
                ],
                cols={"base": 1, "md": 2},
                spacing="md",
            ),
            card("All settings", graph("tuning-parallel", 340), "One line a trial, from its knobs to its step time."),
            card(
                "All trials",
                html.Div(
                    [
                        per_device(_grid(), html.Div(id="tuning-small")),
                        dmc.Text(id="tuning-missed", size="sm", c="dimmed", mt=6),
                    ]
                ),
                "A click on a knobs version leads to the steps that ran under it in the timeline.",
            ),
        ],
        gap="md",
    )
    nothing = empty(
        "This run was not tuned",
        "A tuning session tries settings while training runs and keeps the best one that it could confirm. Start one:",
        "ringtune tune -np 2 python train.py",
    )
    return html.Div(
        [
            html.Div(id="tuning-problems"),
            address_store("tuning"),
            dcc.Store(id=drawn_store("tuning")),
            age("tuning"),
            html.Div(charts, id="tuning-charts"),
            html.Div(nothing, id="tuning-empty", style=shown(False)),
        ]
    )


_OF_KNOBS: list[dict[str, Any]] = [
    {
        "field": "fusion_bytes",
        "headerName": "Fusion buffer",
        "minWidth": 118,
        "valueFormatter": {"function": "params.data.fusion"},
        **_NUMBER,
    },
    {
        "field": "cycle_time_ns",
        "headerName": "Cycle time",
        "minWidth": 100,
        "valueFormatter": {"function": "params.data.cycle"},
        **_NUMBER,
    },
    {"field": "others", "headerName": "Other settings", "minWidth": 150, **WRAPPING},
]
_OF_VARIABLES: list[dict[str, Any]] = [{"field": "setting", "headerName": "Setting", "minWidth": 260, **WRAPPING}]
_VERSION: dict[str, Any] = {
    "field": "knobs_version",
    "headerName": "Knobs version",
    "minWidth": 125,
    **_NUMBER,
    "cellClass": f"{_NUMBER['cellClass']} rt-link",
}


def columns(*, with_restarts: bool) -> list[dict[str, Any]]:
    """Return the grid's columns: of knobs, or of the variables that a session with restarts tries."""
    return [
        {"field": "trial", "headerName": "Trial", "minWidth": 75, "maxWidth": 90, **_NUMBER},
        {"field": "source", "headerName": "Source", "minWidth": 110, **WRAPPING},
        {"field": "state", "headerName": "State", "minWidth": 112, **WRAPPING},
        *(_OF_VARIABLES if with_restarts else _OF_KNOBS),
        {
            "field": "step_ns",
            "headerName": "Step time",
            "minWidth": 95,
            "valueFormatter": {"function": "params.data.step"},
            **_NUMBER,
        },
        {"field": "interval", "headerName": "Interval", "minWidth": 160, **_NUMBER},
        {"field": "steps", "headerName": "Steps", "minWidth": 76, "maxWidth": 90, **_NUMBER},
        *([] if with_restarts else [_VERSION]),
    ]


def _grid() -> dag.AgGrid:
    return dag.AgGrid(
        id="tuning-grid",
        rowData=[],
        columnDefs=columns(with_restarts=False),
        defaultColDef={"sortable": True, "resizable": True},
        dashGridOptions={
            "domLayout": "autoHeight",
            "rowHeight": 36,
            "headerHeight": 38,
            "animateRows": False,
            **SELECTABLE,
        },
        columnSize="responsiveSizeToFit",
        className="rt-dense",
        style={"height": None, "width": "100%"},
    )


def table_rows(past: TuningHistory) -> list[dict[str, Any]]:
    """Return the rows of the grid: numbers to sort by, and the texts that show them."""
    rows = []
    for trial in past.trials:
        fusion, cycle, step = trial.knobs.get("fusion_bytes"), trial.knobs.get("cycle_time_ns"), trial.step_ns
        rows.append(
            {
                "trial": trial.trial,
                "source": SOURCES.get(trial.source, plain(trial.source, 40)),
                "state": plain(trial.state, 40).replace("-", " "),
                "fusion_bytes": fusion,
                "fusion": size(fusion),
                "cycle_time_ns": cycle,
                "cycle": duration(cycle),
                "others": ", ".join(tuning.other_words(trial.knobs)),
                "setting": past.words(trial),
                "step_ns": step.median if step else None,
                "step": duration(step.median if step else None),
                "interval": f"{duration(step.low)} to {duration(step.high)}" if step else "",
                "steps": trial.steps,
                "knobs_version": trial.knobs_version,
            }
        )
    rows += [
        {"trial": trial, "source": SOURCES["switch"], "state": f"failed: {plain(said, 120)}", "setting": words}
        for trial, words, said in ((one, tuning.setting_words(setting), said) for one, setting, said in past.failed)
    ]
    return sorted(rows, key=lambda row: row["trial"])


def small_table(rows: list[dict[str, Any]]) -> Any:
    """Return the table of trials for a phone."""
    names = ("trial", "source", "state", "setting", "step", "interval", "steps")
    cells = [[str(row.get(name, "–")) for name in names] for row in rows]
    return table(("Trial", "Source", "State", "Setting", "Step time", "Interval", "Steps"), cells)


def decision(past: TuningHistory) -> dmc.Alert | None:
    """Return the decision in words."""
    sentences = tuning.words(past)
    if not sentences:
        return None
    color = {"improved": "teal", "keep-default": "blue", "interrupted": "orange"}
    return dmc.Alert(
        " ".join(sentences[1:]),
        title=sentences[0],
        color=color.get(past.result.decision, "gray") if past.result else "blue",
        variant="light",
        radius="md",
    )


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(
        Output("tuning-problems", "children"),
        Output("tuning-words", "children"),
        Output("tuning-trials", "figure"),
        Output("tuning-plane", "figure"),
        Output("tuning-lost", "figure"),
        Output("tuning-importance", "figure"),
        Output("tuning-parallel", "figure"),
        Output("tuning-grid", "rowData"),
        Output("tuning-grid", "columnDefs"),
        Output("tuning-small", "children"),
        Output("tuning-charts", "style"),
        Output("tuning-empty", "style"),
        Output("tuning-age", "children"),
        Output(drawn_store("tuning"), "data"),
        Input("slow", "data"),
        Input("scheme", "data"),
        State("url", "pathname"),
    )
    def fill(_slow: Any, scheme: str | None, pathname: str | None) -> tuple[Any, ...]:
        route = context.route(pathname, "")
        run = context.run(route)
        if run is None:
            return (no_update,) * 14
        look, live = scheme_of(scheme), run.status == "live"
        past, known = context.runs.tuning(run), context.runs.learned(run)
        with context.cpu_budget.drawing(route):
            return (
                problems(past.problems),
                decision(past),
                tuning_trials.trials(past, look),
                tuning_plane.plane(past, look, surface=known.surface),
                tuning_trials.lost(past, look),
                tuning_settings.importance(known.importance, look),
                tuning_settings.parallel(past, look),
                table_rows(past),
                columns(with_restarts=past.with_restarts),
                small_table(table_rows(past)),
                shown(past),
                shown(not past),
                age_words(past, len(past.trials), known.trials) if live else "",
                _drawn(past, known, pathname) if live and past else None,
            )

    @app.callback(
        Output("tuning-place", "data"),
        Output("tuning-missed", "children"),
        Input("tuning-grid", "cellClicked"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def lead(clicked: dict[str, Any] | None, pathname: str | None) -> tuple[Any, Any]:
        if (clicked or {}).get("colId") != "knobs_version":
            return no_update, no_update
        route = context.route(pathname, "")
        found = version_place(analysis_of(context, pathname), (clicked or {}).get("value"))
        if isinstance(found, str):
            return no_update, found
        query = address("", found, {})["search"]
        return f"{routes.href(Route('timeline', route.run), context.prefix)}?{query}", ""

    follow_place(app, "tuning")


def age_words(past: TuningHistory, drawn: int, learned: int) -> str:
    """Return the progress of a running session, and which parts of the page are outdated."""
    if past.result is not None or not past:
        return ""
    words = f"{several(len(past.trials), 'trial')} so far."
    older = {"All settings": drawn, "Which knob matters, and what lies between points,": learned}
    return " ".join([
        words, *(f"{what} of the first {count(n)}." for what, n in older.items() if n < len(past.trials))
    ])  # fmt: skip


def _shape(past: TuningHistory, traces: dict[str, list[dict[str, Any]]]) -> list[Any]:
    """What has to be the same so that points can be put onto what is drawn."""
    names = [[one["name"] for one in found] for found in traces.values()]
    return [past.result is None, past.with_restarts, len(past.failed), *names]


def _now(past: TuningHistory, units: list[float]) -> dict[str, list[dict[str, Any]]]:
    return {
        "tuning-trials": tuning_trials.trials_now(past, units[0]),
        "tuning-plane": tuning_plane.plane_now(past),
        "tuning-lost": tuning_trials.lost_now(past, units[1]),
    }


def _drawn(past: TuningHistory, known: Learned, pathname: str | None) -> dict[str, Any]:
    """Return what the next polls need to know to add trials."""
    units = [tuning_trials.trials_unit(past)[0], tuning_trials.lost_unit(past)[0]]
    about = {"page": pathname, "number": time.monotonic_ns(), "shape": _shape(past, _now(past, units))}
    return {
        **about,
        "unit_ns": units[0],
        "lost_unit_ns": units[1],
        "rows": len(table_rows(past)),
        "drawn": len(past.trials),
        "learned": known.trials,
    }


def news(context: Context, route: Route, before: dict[str, Any]) -> dict[str, Any]:
    """Return the trials that came since the page was drawn; ``before``, from the browser, may be anything."""
    run, number = context.run(route), before.get("number")
    numbers = drawn_numbers(before, "rows", "drawn", "learned", "unit_ns", "lost_unit_ns")
    if run is None or numbers is None or not all(numbers[3:]):
        return {}
    rows, drawn, learned, *units = numbers
    past = context.runs.tuning(run)
    traces, fresh = _now(past, units), table_rows(past)
    if _shape(past, traces) != before.get("shape") or len(fresh) < int(rows):
        return {"anew": number}
    changed = [{"graph": graph_, "traces": found} for graph_, found in traces.items() if found]
    grown = {"number": number, "figures": changed, "drawn": {**before, "rows": len(fresh)}}
    added = {"rowTransaction": {"add": fresh[int(rows) :], "async": False}}
    said = [["tuning-age", {"children": age_words(past, int(drawn), int(learned))}]]
    return {"grown": grown, "props": [*said, *([["tuning-grid", added]] if len(fresh) > rows else [])]}


def version_place(found: Analysis | Preparing | str | None, version: object) -> Window | str:
    """Return the window of the steps that ran under a version of the knobs, or why there is none."""
    if not isinstance(found, Analysis):
        known = {"Preparing": "The timeline is being prepared; try again", "NoneType": "No timeline was recorded"}
        return known.get(type(found).__name__, str(found))
    for one in found.document["summary"]["knobs_versions"]:
        if one["knobs_version"] == version and one["first_step"] >= 0:
            window = found.window_ns(one["first_step"], one["last_step"])
            if window is not None:
                return Window(*map(float, window)).widened(0.03)
    return f"No step under version {version} is in the timeline"
