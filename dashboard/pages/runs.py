"""The table of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from ringtune.dashboard import routes
from ringtune.dashboard.components import STATUS_WORDS, address_store, empty, follow_address, shown
from ringtune.dashboard.context import Context
from ringtune.dashboard.data.runs import RunRow
from ringtune.dashboard.routes import Route
from ringtune.dashboard.units import duration, moment

_NUMBER = {"type": "rightAligned", "cellClass": "rt-number ag-right-aligned-cell"}
PAGE_ROWS = 50
_HINT = dmc.Text("Mark two runs or more to compare them.", size="sm", c="dimmed")


def layout(context: Context, route: Route) -> html.Div:
    """Return the page; its callback fills the table."""
    search = route.query.get("q", "")[:200]
    return html.Div(
        [
            dmc.Group(
                [
                    dmc.Title("Runs", order=2, className="rt-run-name"),
                    html.Div(_HINT, id="runs-compare", className="rt-bar"),
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
            html.Div(_grid(search, len(context.folder.paths())), id="runs-table"),
            html.Div(_nothing(context), id="runs-empty"),
        ]
    )


def _grid(search: str, rows: int) -> dag.AgGrid:
    return dag.AgGrid(
        id="runs-grid",
        rowData=[],
        columnDefs=_columns(),
        defaultColDef={"sortable": True, "resizable": True, "filter": False, "suppressHeaderMenuButton": True},
        getRowId="params.data.id",
        dashGridOptions={
            "quickFilterText": search,
            "animateRows": False,
            "domLayout": "autoHeight",
            "rowHeight": 42,
            "headerHeight": 40,
            "pagination": True,
            "paginationPageSize": PAGE_ROWS,
            "paginationPageSizeSelector": False,
            "suppressPaginationPanel": rows <= PAGE_ROWS,
            "enableCellTextSelection": True,
            "rowSelection": {"mode": "multiRow", "headerCheckbox": False, "enableClickSelection": False},
            "selectionColumnDef": {"width": 44, "maxWidth": 44, "resizable": False, "sortable": False},
        },
        columnSize="responsiveSizeToFit",
        style={"height": None, "width": "100%"},
    )


def _columns() -> list[dict[str, Any]]:
    return [
        {"field": "name", "headerName": "Name", "cellRenderer": "RunLink", "minWidth": 190},
        {"field": "state", "headerName": "Status", "cellRenderer": "Status", "minWidth": 250, "tooltipField": "ending"},
        {"field": "ranks", "headerName": "Ranks", "maxWidth": 95, "minWidth": 80, **_NUMBER},
        {"field": "created", "headerName": "Created", "sort": "desc", "minWidth": 165, "cellClass": "rt-number"},
        {"field": "steps", "headerName": "Steps", "maxWidth": 110, "minWidth": 80, **_NUMBER},
        {
            "field": "step_ns",
            "headerName": "Step (median)",
            "minWidth": 120,
            "valueFormatter": {"function": "params.data.step_time"},
            **_NUMBER,
        },
        {"field": "tags", "headerName": "Tags", "minWidth": 170, "tooltipField": "tags"},
    ]


def _nothing(context: Context) -> Any:
    return empty(
        "No runs yet",
        f"Every job that ringtune starts leaves a folder here ({context.folder.root}). Start one:",
        "ringtune run -np 2 --timeline trace.json python train.py",
    )


def table_rows(rows: Sequence[RunRow], prefix: str) -> list[dict[str, Any]]:
    """Return the rows of the grid: numbers to sort by, and the texts that show them."""
    return [
        {
            "id": row.info.id,
            "name": row.info.name,
            "href": routes.href(Route("overview", row.info.id), prefix),
            "status": row.info.status,
            "state": STATUS_WORDS[row.info.status][0],
            "ending": row.info.ending,
            "ranks": row.info.ranks,
            "created": moment(row.info.created_unix_ns),
            "steps": row.steps,
            "step_ns": None if math.isnan(row.step_ns) else row.step_ns,
            "step_time": duration(row.step_ns),
            "tags": ", ".join(row.info.tags),
            "hosts": " ".join(sorted(set(row.info.hosts))[:50]),
        }
        for row in rows
    ]


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
        Input("stamp", "data"),
    )
    def fill(_stamp: str | None) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, str]]:
        rows = table_rows(context.folder.rows(), context.prefix)
        return rows, shown(rows), shown(not rows)

    @app.callback(Output("runs-compare", "children"), Input("runs-grid", "selectedRows"), prevent_initial_call=True)
    def mark(marked: list[dict[str, Any]] | None) -> Any:
        return compare_link(marked or [], context.prefix)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "quickFilter"),
        Output("runs-grid", "dashGridOptions"),
        Output("runs-address", "data"),
        Input("runs-search", "value"),
        State("runs-grid", "dashGridOptions"),
    )
    follow_address(app, "runs")
