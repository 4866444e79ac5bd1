"""The history of a tuning session: what was tried, what was confirmed, what was decided."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html, no_update

from ringtune.dashboard.components import card, empty, graph, problems, shown
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import tuning
from ringtune.dashboard.data.tuning import SOURCES, TuningHistory
from ringtune.dashboard.figures import tuning as figures
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import scheme_of
from ringtune.dashboard.units import duration, plain, size

_NUMBER = {"type": "rightAligned", "cellClass": "rt-number ag-right-aligned-cell"}


def layout(_context: Context, _route: Route) -> html.Div:
    """Return the page; its callback fills it."""
    charts = dmc.Stack(
        [
            html.Div(id="tuning-words"),
            dmc.SimpleGrid(
                [
                    card("Trials", graph("tuning-trials", 340), "Median step time of each setting with its interval."),
                    card("Settings tried", graph("tuning-plane", 340), "Both knobs, coloured by step time."),
                ],
                cols={"base": 1, "md": 2},
                spacing="md",
            ),
            card("All trials", _grid()),
        ],
        gap="md",
    )
    nothing = empty(
        "This run was not tuned",
        "A tuning session tries settings while training runs and keeps the best one that it could confirm. Start one:",
        "ringtune tune -np 2 python train.py",
    )
    return html.Div(
        [html.Div(id="tuning-problems"), html.Div(charts, id="tuning-charts"), html.Div(nothing, id="tuning-empty")]
    )


def _grid() -> dag.AgGrid:
    columns: list[dict[str, Any]] = [
        {"field": "trial", "headerName": "Trial", "maxWidth": 90, **_NUMBER},
        {"field": "source", "headerName": "Source", "minWidth": 130},
        {"field": "state", "headerName": "State", "minWidth": 120},
        {
            "field": "fusion_bytes",
            "headerName": "Fusion buffer",
            "valueFormatter": {"function": "params.data.fusion"},
            **_NUMBER,
        },
        {
            "field": "cycle_time_ns",
            "headerName": "Cycle time",
            "valueFormatter": {"function": "params.data.cycle"},
            **_NUMBER,
        },
        {"field": "step_ns", "headerName": "Step time", "valueFormatter": {"function": "params.data.step"}, **_NUMBER},
        {"field": "interval", "headerName": "Interval", "minWidth": 170, **_NUMBER},
        {"field": "steps", "headerName": "Steps", "maxWidth": 90, **_NUMBER},
        {"field": "epoch", "headerName": "Knobs version", **_NUMBER},
    ]
    return dag.AgGrid(
        id="tuning-grid",
        rowData=[],
        columnDefs=columns,
        defaultColDef={"sortable": True, "resizable": True},
        dashGridOptions={"domLayout": "autoHeight", "rowHeight": 36, "headerHeight": 38, "animateRows": False},
        columnSize="responsiveSizeToFit",
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
                "step_ns": step.median if step else None,
                "step": duration(step.median if step else None),
                "interval": f"{duration(step.low)} to {duration(step.high)}" if step else "",
                "steps": trial.steps,
                "epoch": trial.epoch,
            }
        )
    return rows


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
        Output("tuning-grid", "rowData"),
        Output("tuning-charts", "style"),
        Output("tuning-empty", "style"),
        Input("stamp", "data"),
        Input("scheme", "data"),
        State("url", "pathname"),
    )
    def fill(_stamp: str | None, scheme: str | None, pathname: str | None) -> tuple[Any, ...]:
        run = context.run(context.route(pathname, ""))
        if run is None:
            return (no_update,) * 7
        past, look = context.tuning(run), scheme_of(scheme)
        return (
            problems(past.problems),
            decision(past),
            figures.trials(past, look),
            figures.plane(past, look),
            table_rows(past),
            shown(past),
            shown(not past),
        )
