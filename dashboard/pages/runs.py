"""The table of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from ringtune.dashboard import routes
from ringtune.dashboard.components import (
    SELECTABLE,
    STATUS_WORDS,
    WRAPPING,
    address_store,
    card,
    empty,
    follow_address,
    shown,
    table,
)
from ringtune.dashboard.context import Context
from ringtune.dashboard.data.run_figures import RunFigures
from ringtune.dashboard.data.runs import RunInfo, RunRow
from ringtune.dashboard.routes import Route
from ringtune.dashboard.units import count, duration, moment, percent, plain

_PLAIN = {"cellClass": "rt-number"}
_NUMBER = {"type": "rightAligned", "cellClass": "rt-number ag-right-aligned-cell"}
PAGE_ROWS = 50
_GROUP_HEAD = ("Group", "Runs", "Shortest step (median)", "of", "Efficiency, mean")
_HINT = dmc.Text("Mark two runs or more to compare them.", size="sm", c="dimmed")


def layout(context: Context, route: Route) -> html.Div:
    """Return the page; its callback fills the table."""
    search, by = route.query.get("q", "")[:200], route.query.get("group", "")[:100] or None
    return html.Div(
        [
            dmc.Group(
                [
                    dmc.Title("Runs", order=2, className="rt-run-name"),
                    html.Div(_HINT, id="runs-compare", className="rt-bar"),
                    dmc.Select(
                        id="runs-group",
                        data=[by] if by else [],
                        value=by,
                        placeholder="Group by tag",
                        clearable=True,
                        w=160,
                        **{"aria-label": "Group runs by a tag"},
                    ),
                    dmc.TextInput(
                        id="runs-search",
                        value=search,
                        placeholder="Search name, status, tag, host …",
                        w=320,
                        **{"aria-label": "Search runs"},
                    ),
                ],
                justify="space-between",
                mb="md",
            ),
            address_store("runs"),
            html.Div(id="runs-groups", className="rt-above"),
            html.Div(_grid(search, by, len(context.folder.paths())), id="runs-table"),
            html.Div(_nothing(context), id="runs-empty"),
        ]
    )


def _grid(search: str, by: str | None, rows: int) -> dag.AgGrid:
    return dag.AgGrid(
        id="runs-grid",
        rowData=[],
        columnDefs=columns(by),
        defaultColDef={
            "sortable": True,
            "resizable": True,
            "filter": False,
            "suppressHeaderMenuButton": True,
            "wrapHeaderText": True,
            "autoHeaderHeight": True,
        },
        getRowId="params.data.id",
        dashGridOptions={
            "quickFilterText": search,
            "includeHiddenColumnsInQuickFilter": True,
            "animateRows": False,
            "domLayout": "autoHeight",
            "rowHeight": 42,
            "headerHeight": 40,
            "pagination": True,
            "paginationPageSize": PAGE_ROWS,
            "paginationPageSizeSelector": False,
            "suppressPaginationPanel": rows <= PAGE_ROWS,
            **SELECTABLE,
            "rowSelection": {"mode": "multiRow", "headerCheckbox": False, "enableClickSelection": False},
            "selectionColumnDef": {"width": 44, "maxWidth": 44, "resizable": False, "sortable": False},
        },
        columnSize="responsiveSizeToFit",
        className="rt-dense",
        style={"height": None, "width": "100%"},
    )


def _shown_as(field: str) -> dict[str, Any]:
    """Return a column of numbers that are sorted by, each shown as the text beside it."""
    return {"field": field, "valueFormatter": {"function": f"params.data.{field}_text"}, **_NUMBER}


def columns(by: str | None) -> list[dict[str, Any]]:
    """Return the columns of the grid; ``by``: the tag that runs are grouped, and thus sorted, by at first."""
    group = {"field": "group", "headerName": by or "", "minWidth": 90, "hide": not by, "sort": "asc" if by else None}
    created = {"field": "created", "headerName": "Created", "sort": "desc", "sortIndex": 1, "minWidth": 105}
    return [
        {**group, "sortIndex": 0, **WRAPPING},
        {"field": "name", "headerName": "Name, command", "cellRenderer": "RunLink", "minWidth": 190, **WRAPPING},
        {"field": "state", "headerName": "Status", "cellRenderer": "Status", "minWidth": 125, **WRAPPING},
        {"field": "ranks", "headerName": "Ranks", "minWidth": 68, "maxWidth": 90, **_NUMBER},
        {**created, **WRAPPING},
        {"field": "steps", "headerName": "Steps", "minWidth": 72, "maxWidth": 100, **_NUMBER},
        {"headerName": "Step (median)", "minWidth": 90, "maxWidth": 120, **_shown_as("step_ns")},
        {"headerName": "Best step", "minWidth": 84, "maxWidth": 110, **_shown_as("best_ns")},
        {"headerName": "Efficiency", "minWidth": 90, "maxWidth": 110, **_shown_as("efficiency")},
        {"headerName": "Waiting", "minWidth": 80, "maxWidth": 100, **_shown_as("waiting")},
        {"headerName": "Late rank", "minWidth": 62, "maxWidth": 90, **_shown_as("late_rank")},
        {"field": "tags", "headerName": "Tags, notes", "cellRenderer": "Tags", "minWidth": 130, **WRAPPING},
        {"field": "command", "hide": True},
        {"field": "notes", "hide": True},
    ]


def _nothing(context: Context) -> Any:
    return empty(
        "No runs yet",
        f"Every job that ringtune starts leaves a folder here ({context.folder.root}). Start one:",
        "ringtune run -np 2 --timeline trace.json python train.py",
    )


def table_rows(rows: Sequence[RunRow], figures: Callable[[RunInfo], RunFigures], prefix: str) -> list[dict[str, Any]]:
    """Return the rows of the grid: numbers to sort by, and the texts that show them."""
    return [_row(row, figures(row.info), prefix) for row in rows]


def _row(row: RunRow, found: RunFigures, prefix: str) -> dict[str, Any]:
    step_ns = found.default_ns if math.isnan(row.step_ns) else row.step_ns
    return {
        "id": row.info.id,
        "group": "",
        "name": row.info.name,
        "href": routes.href(Route("overview", row.info.id), prefix),
        "status": row.info.status,
        "state": STATUS_WORDS[row.info.status][0],
        "ending": row.info.ending,
        "ranks": row.info.ranks,
        "created": moment(row.info.created_unix_ns),
        "steps": row.steps,
        **_number("step_ns", step_ns, duration),
        **_number("best_ns", found.best_ns, duration),
        **_number("efficiency", found.efficiency, percent),
        **_number("waiting", found.waiting, percent),
        **_number("late_rank", found.late_rank if found.late_rank >= 0 else math.nan, lambda rank: f"{rank:.0f}"),
        "tags": ", ".join(row.info.tags),
        "notes": row.info.notes,
        "command": plain(" ".join(row.info.command), 300),
        "hosts": " ".join(sorted(set(row.info.hosts))[:50]),
    }


def _number(name: str, value: float, words: Callable[[float], str]) -> dict[str, Any]:
    """Return a number for JSON, which knows no NaN, and its text."""
    known = not math.isnan(value)
    return {name: value if known else None, f"{name}_text": words(value) if known else "–"}


def tag_names(rows: Sequence[RunRow]) -> list[str]:
    """Return the names of the tags that runs have, to group by."""
    return sorted({tag.partition("=")[0] for row in rows for tag in row.info.tags})


def grouped(rows: list[dict[str, Any]], by: str | None) -> list[dict[str, Any]]:
    """Return the rows with the value of a tag as their group; ``by`` "name" groups by the run's name."""
    return [{**row, "group": row["name"] if by == "name" else _value(row["tags"], by)} for row in rows] if by else rows


def _value(tags: str, name: str) -> str:
    known = dict(tag.partition("=")[::2] for tag in tags.split(", "))
    return (known[name] or "yes") if name in known else "–"


def groups(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return a line for every group: its runs, the shortest median step and whose it is, and the mean efficiency."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["group"], []).append(row)
    lines = []
    for name, own in sorted(found.items()):
        timed = [row for row in own if row["step_ns"] is not None]
        first = min(timed, key=lambda row: row["step_ns"], default=None)
        rates = [row["efficiency"] for row in own if row["efficiency"] is not None]
        best = [first["step_ns_text"], first["name"]] if first else ["–", "–"]
        lines.append([plain(name, 60), count(len(own)), *best, percent(sum(rates) / len(rates)) if rates else "–"])
    return lines


def compare_link(marked: Sequence[dict[str, Any]], prefix: str) -> Any:
    """Return the link that compares the marked runs, the oldest first as the one to measure against."""
    if len(marked) < 2:
        return _HINT
    ids = [str(row["id"]) for row in sorted(marked, key=lambda row: (str(row["created"]), str(row["id"])))]
    query = {"a": ids[0], "b": ids[1]}
    if len(ids) > 2:
        query["also"] = ",".join(quote(one, safe="") for one in ids[2:])
    words = f"Compare {len(ids)} runs"
    return dcc.Link(words, href=routes.href(Route("compare", query=query), prefix), className="rt-button")


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(
        Output("runs-grid", "rowData"),
        Output("runs-table", "style"),
        Output("runs-empty", "style"),
        Output("runs-groups", "children"),
        Output("runs-group", "data"),
        Input("stamp", "data"),
        Input("runs-group", "value"),
    )
    def fill(_stamp: str | None, by: str | None) -> tuple[Any, ...]:
        known = context.folder.rows()
        rows = grouped(table_rows(known, context.runs.figures.of, context.prefix), by)
        summary = card(f"By {plain(by, 40)}", table(_GROUP_HEAD, groups(rows))) if by and rows else []
        return rows, shown(rows), shown(not rows), summary, ["name", *tag_names(known)]

    @app.callback(Output("runs-grid", "columnDefs"), Input("runs-group", "value"), prevent_initial_call=True)
    def sort(by: str | None) -> list[dict[str, Any]]:
        return columns(by)

    @app.callback(Output("runs-compare", "children"), Input("runs-grid", "selectedRows"), prevent_initial_call=True)
    def mark(marked: list[dict[str, Any]] | None) -> Any:
        return compare_link(marked or [], context.prefix)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "quickFilter"),
        Output("runs-grid", "dashGridOptions"),
        Output("runs-address", "data"),
        Input("runs-search", "value"),
        Input("runs-group", "value"),
        State("runs-grid", "dashGridOptions"),
    )
    follow_address(app, "runs")
