"""The Dash app: frame, routing and the poll that keeps pages of a running job up to date."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from flask import Flask, Response, request

from ringtune.dashboard import polling, routes
from ringtune.dashboard.components import drawn_store, empty, follow_saving, run_head
from ringtune.dashboard.context import Context
from ringtune.dashboard.cpu_budget import POLL_MS
from ringtune.dashboard.data.runs import RunsFolder
from ringtune.dashboard.page_registry import PAGES
from ringtune.dashboard.pages import (
    communication,
    compare,
    overview,
    runs,
    scaling,
    stragglers,
    system,
    timeline,
    tuning,
    whatif,
)
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import FONT
from ringtune.dashboard.units import plain

PLOTLY = "_dash-component-suites/plotly/package_data/plotly.min.js"
"""Where Dash has plotly, which is four megabytes large."""

MODULES: Mapping[str, ModuleType] = {
    "runs": runs,
    "compare": compare,
    "overview": overview,
    "timeline": timeline,
    "stragglers": stragglers,
    "communication": communication,
    "tuning": tuning,
    "what-if": whatif,
    "system": system,
    "scaling": scaling,
}
"""The module of every page: ``layout(context, route)`` and ``register(app, context)``."""


NEWS: polling.News = {
    "overview": overview.news,
    "timeline": timeline.news,
    "stragglers": stragglers.news,
    "communication": communication.news,
    "system": system.news,
    "tuning": tuning.news,
    "what-if": whatif.news,
    "compare": compare.news,
}
"""By page, what is new at a poll, given what the page has drawn; sent with the stamp, so a poll is one request."""


def create_app(root: Path, prefix: str = "/") -> Dash:
    """Return the app over a folder of runs, served under ``prefix`` (a path with a slash at both ends)."""
    context = Context(RunsFolder(root), prefix)
    app = Dash(
        "ringtune.dashboard",
        title="ringtune",
        update_title="",
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        suppress_callback_exceptions=True,
        requests_pathname_prefix=prefix,
        routes_pathname_prefix=prefix,
        add_log_handler=False,
    )
    # Dash asks for plotly when a page has its first figure; fetched from the start it is there by then.
    early = f'<link rel="preload" as="script" href="{escape(prefix)}{PLOTLY}">'
    app.index_string = app.index_string.replace("{%css%}", early + "{%css%}")
    app.layout = _frame(context)
    _register(app, context)
    _tell_missing(app, context)
    for page in MODULES.values():
        page.register(app, context)
    return app


def _frame(context: Context) -> dmc.MantineProvider:
    toggle = dmc.ActionIcon(
        [html.Span("☀", className="rt-when-light"), html.Span("☾", className="rt-when-dark")],
        id="scheme-toggle",
        variant="subtle",
        color="gray",
        size="lg",
        **{"aria-label": "Light or dark"},
    )
    header = dmc.Group(
        [
            dcc.Link("ringtune", href=context.prefix, className="rt-brand"),
            html.Nav(id="nav"),
            dmc.Group(
                [
                    dmc.Text(f"\u200e{plain(context.folder.root, 200)}", size="xs", c="dimmed", className="rt-folder"),
                    toggle,
                ],
                gap="sm",
                ml="auto",
            ),
        ],
        h="100%",
        px=22,
        gap="lg",
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Interval(id="poll", interval=POLL_MS),
            dcc.Store(id="title"),
            dcc.Store(id="stamp"),
            dcc.Store(id="status"),
            dcc.Store(id="news"),
            dcc.Store(id="said"),
            dcc.Store(id="slow", data={}),
            dcc.Store(id="drawn"),
            dcc.Store(id="scheme", storage_type="local"),
            dmc.AppShell(
                [dmc.AppShellHeader(header), dmc.AppShellMain(html.Div(id="page", className="rt-main"))],
                header={"height": 54},
                padding=0,
            ),
        ],
        theme={"fontFamily": FONT, "primaryColor": "blue", "headings": {"fontFamily": FONT, "fontWeight": "600"}},
        id="frame",
        defaultColorScheme="auto",
    )


def _register(app: Dash, context: Context) -> None:
    @app.callback(
        Output("page", "children"),
        Output("nav", "children"),
        Output("title", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
    )
    def show(pathname: str | None, search: str | None) -> tuple[Any, Any, str]:
        route = context.route(pathname, search)
        return page_of(context, route), _nav(route, context.prefix), title_of(context, route)

    app.clientside_callback(ClientsideFunction("ringtune", "title"), Input("title", "data"))  # type: ignore[no-untyped-call]

    polling.register(app, context, NEWS)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "poll"),
        Input("poll", "n_intervals"),
        State("stamp", "data"),
        State("url", "pathname"),
        State("drawn", "data"),
    )

    @app.callback(
        Output("run-head", "children"), Input("status", "data"), State("url", "pathname"), prevent_initial_call=True
    )
    def head(_status: str | None, pathname: str | None) -> Any:
        route = context.route(pathname, "")
        run = context.run(route)
        return no_update if run is None else run_head(run, route.page, context.prefix)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "status"),
        Output("status", "data"),
        Input("stamp", "data"),
        State("status", "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "slowly"),
        Output("slow", "data"),
        Input("poll", "n_intervals"),
        Input("stamp", "data"),
        Input("url", "pathname"),
        State("slow", "data"),
        State("news", "data"),
        State("drawn", "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "say"), Output("said", "data"), Input("news", "data")
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "grow"),
        Output("drawn", "data"),
        Input("news", "data"),
        Input(drawn_store(ALL), "data"),
        State("drawn", "data"),
        prevent_initial_call=True,
    )
    follow_saving(app)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "scheme"),
        Output("scheme", "data"),
        Output("frame", "forceColorScheme"),
        Input("scheme-toggle", "n_clicks"),
        State("scheme", "data"),
    )


def page_of(context: Context, route: Route) -> html.Div:
    """Return the page of a route; for an unknown address one that says so."""
    if route.page == "unknown":
        return html.Div(
            empty(
                "There is no such page",
                "This dashboard has no page at this address. All runs are listed under Runs.",
            )
        )
    if not route.run:
        return html.Div(MODULES[route.page].layout(context, route))
    run = context.run(route)
    if run is None:
        lost = f"There is no run {plain(route.run)!r} below {context.folder.root}. It may have been moved or deleted."
        return html.Div(empty("This run is not here", lost))
    return html.Div(
        [html.Div(run_head(run, route.page, context.prefix), id="run-head"), MODULES[route.page].layout(context, route)]
    )


def title_of(context: Context, route: Route) -> str:
    """Return what the browser calls a page in its tab and history."""
    word = next((page.word for page in PAGES if page.name == route.page), "No such page")
    run = context.run(route) if route.run else None
    if route.run:
        word = f"{plain(run.name, 60)}: {word}" if run is not None else "No such run"
    return f"{word} - ringtune"


def _tell_missing(app: Dash, context: Context) -> None:
    """Answer addresses of no page and of no run with 404; the page itself says so in words."""
    server = app.server
    assert isinstance(server, Flask)

    @server.after_request
    def missing(response: Response) -> Response:
        if response.status_code == 200 and response.mimetype == "text/html":
            route = context.route(urlsplit(request.environ.get("REQUEST_URI", request.path)).path, "")
            if route.page == "unknown" or (route.run and context.run(route) is None):
                response.status_code = 404
        return response


def _nav(route: Route, prefix: str) -> list[dcc.Link]:
    at = "runs" if route.run or route.page == "unknown" else route.page
    return [
        dcc.Link(
            page.word,
            href=routes.href(Route(page.name), prefix),
            className="rt-nav rt-nav-active" if page.name == at else "rt-nav",
            id=f"nav-{page.name}",
        )
        for page in PAGES
        if page.overall
    ]
