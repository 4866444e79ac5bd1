"""Pieces that pages share: cards, numbers, badges, empty states. All text is plain; nothing is read as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, dcc, html

from ringtune.dashboard import routes, theme
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.page_registry import PAGES
from ringtune.dashboard.routes import Route
from ringtune.dashboard.units import count, moment, plain

SELECTABLE = {"enableCellTextSelection": True, "ensureDomOrder": True}
"""Options of a grid whose numbers can be selected and copied; a selection follows the order of the elements."""

WRAPPING = {"wrapText": True, "autoHeight": True, "cellClass": "rt-wrapping"}
"""A column of a grid whose texts take several lines rather than being cut."""

_NARROW = 34
"""Characters of a line of a table that fits a phone."""
STATUS_WORDS = {
    "live": ("live", "blue"),
    "finished": ("finished", "teal"),
    "failed": ("failed", "red"),
    "lost": ("lost", "orange"),
    "unreadable": ("unreadable", "gray"),
}


def badge(status: str, identity: str = "") -> dmc.Badge:
    """Return the badge of a run's status."""
    word, color = STATUS_WORDS.get(status, STATUS_WORDS["unreadable"])
    more = {"id": identity} if identity else {}
    return dmc.Badge(word, color=color, variant="light", radius="sm", tt="none", **more)


def card(title: str, children: Any, hint: str = "") -> dmc.Card:
    """Return a titled card."""
    head = [dmc.Title(title, order=4, className="rt-card-title")]
    if hint:
        head.append(dmc.Text(hint, size="sm", c="dimmed"))
    return dmc.Card([dmc.Stack(head, gap=2, mb="xs"), children], withBorder=True, radius="md", p="md")


def graph(identity: str, height: int, **config: Any) -> html.Div:
    """Return an empty graph that a callback fills; ``config`` adds to `theme.PLOT_CONFIG`.

    With a menu that saves the figure, unless plotly's own bar of buttons is switched off.
    """
    blank = go.Figure(layout={"height": height, "template": theme.template("light"), "xaxis": {"visible": False}})
    blank.update_yaxes(visible=False)
    plot = dcc.Graph(
        id=identity,
        figure=blank,
        config=cast(Any, {**theme.PLOT_CONFIG, **config}),
        className="rt-graph",
        style={"minHeight": height},
    )
    return html.Div(
        [plot, *([] if config.get("displayModeBar") is False else _save_menu(identity))],
        className="rt-figure",
        style={"minHeight": height},  # an empty graph has no height until plotly is loaded
    )


def _save_menu(identity: str) -> list[Any]:
    """Return the menu that saves a figure as PNG, SVG, or its data as CSV, in the browser."""
    named = {"aria-label": "Save this figure"}
    button = dmc.Button("Save", variant="subtle", color="gray", size="compact-xs", **named)
    items = [
        dmc.MenuItem(word, id={"type": "rt-save", "figure": identity, "as": format_})
        for word, format_ in (("Picture (PNG)", "png"), ("Drawing (SVG)", "svg"), ("Data (CSV)", "csv"))
    ]
    menu = dmc.Menu([dmc.MenuTarget(button), dmc.MenuDropdown(items)], position="top-end", withinPortal=True)
    return [html.Div(menu, className="rt-save"), dcc.Store(id={"type": "rt-saved", "figure": identity})]


def follow_saving(app: Dash) -> None:
    """Let the menus of all figures save them."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "saveFigure"),
        Output({"type": "rt-saved", "figure": MATCH}, "data"),
        Input({"type": "rt-save", "figure": MATCH, "as": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )


def stat(label: str, value: str, note: str = "", at: int | None = None, page: str = "poll") -> dmc.Card:
    """Return one number with its label and a line below; ``at``: its place among those of a page that polls change."""
    named = [{} if at is None else {"id": {"type": f"{page}-{part}", "at": at}} for part in ("value", "note")]
    lines = [
        dmc.Text(label, size="xs", c="dimmed", className="rt-stat-label"),
        dmc.Text(value, className="rt-stat-value", **named[0]),
        dmc.Text(note or "\u00a0", size="xs", c="dimmed", **named[1]),
    ]
    return dmc.Card(dmc.Stack(lines, gap=2), withBorder=True, radius="md", px="md", py="sm")


def drawn_numbers(before: Mapping[str, Any], *names: str) -> list[float] | None:
    """Return numbers, none below 0, from a page's account of what it has drawn; None where one is missing or wrong."""
    found = [before.get(name) for name in names]
    known = [one for one in found if isinstance(one, (int, float)) and 0 <= one < 2**62]
    return known if len(known) == len(names) else None


def poll_texts(page: str, numbers: Sequence[tuple[str, str, str]]) -> list[list[Any]]:
    """Return what a poll writes into a page's cards of these numbers: the card and the text."""
    texts: list[list[Any]] = []
    for at, (_, value, note) in enumerate(numbers):
        texts.append([{"type": f"{page}-value", "at": at}, value])
        texts.append([{"type": f"{page}-note", "at": at}, note or "\u00a0"])
    return texts


def stats(cards: Sequence[dmc.Card]) -> dmc.SimpleGrid:
    """Return numbers side by side."""
    return dmc.SimpleGrid(list(cards), cols={"base": 2, "sm": 3, "lg": min(7, max(1, len(cards)))}, spacing="md")


def empty(title: str, what: str, command: str = "") -> dmc.Card:
    """Return an empty state: what is missing, and the command that makes it."""
    lines: list[Any] = [dmc.Title(title, order=4), dmc.Text(what, c="dimmed", maw=620, ta="center")]
    if command:
        lines.append(dmc.Code(command, block=True))
    return dmc.Card(
        dmc.Stack(lines, align="center", gap="sm"), withBorder=True, radius="md", p="xl", className="rt-empty"
    )


def problems(sentences: Sequence[str]) -> list[Any]:
    """Return a note about what could not be read; nothing when all could."""
    if not sentences:
        return []
    shown = [html.Li(plain(sentence, 300)) for sentence in sentences[:8]]
    if len(sentences) > 8:
        shown.append(html.Li(f"and {len(sentences) - 8} more"))
    return [
        dmc.Alert(
            html.Ul(shown, className="rt-list"), title="Some of this run could not be read", color="yellow", mb="md"
        )
    ]


def facts(pairs: Sequence[tuple[str, str]]) -> dmc.Table:
    """Return a table of two columns."""
    rows = [
        dmc.TableTr(
            [dmc.TableTd(plain(name), className="rt-fact-name"), dmc.TableTd(plain(value, 400), className="rt-wrap")]
        )
        for name, value in pairs
    ]
    return dmc.Table(dmc.TableTbody(rows), withRowBorders=True, verticalSpacing=6, className="rt-facts")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> dmc.TableScrollContainer:
    """Return a small table of texts and components, such as links; on a phone a wide one has a line for each cell."""
    top = dmc.TableThead(dmc.TableTr([dmc.TableTh(word) for word in head]))
    body = dmc.TableTbody([dmc.TableTr([table_cell(*one) for one in zip(head, row, strict=True)]) for row in rows])
    columns = zip(head, *([cell if isinstance(cell, str) else "" for cell in row] for row in rows), strict=True)
    wide = sum(max(map(len, column)) for column in columns) > _NARROW
    look = "rt-table rt-stacked" if wide else "rt-table"
    return dmc.TableScrollContainer(dmc.Table([top, body], verticalSpacing=6, className=look), minWidth=0)


def per_device(grid: Any, small: Any) -> html.Div:
    """Return a grid, in whose place a phone shows a small table."""
    return html.Div([html.Div(grid, className="rt-of-screens"), html.Div(small, className="rt-of-phones")])


def table_cell(head: str, content: Any) -> dmc.TableTd:
    """Return a cell that knows the head of its column, for tables that are stacked."""
    return dmc.TableTd(plain(content, 200) if isinstance(content, str) else content, **{"data-head": head})


def run_head(info: RunInfo, tab: str, prefix: str) -> list[Any]:
    """Return the head of a run's pages: name, how it is doing, and its tabs."""
    parts = [f"{count(info.ranks)} rank{'s' if info.ranks != 1 else ''}" if info.ranks else "", _hosts(info)]
    parts += [moment(info.created_unix_ns) if info.created_unix_ns else "", info.ending]
    line = dmc.Group(
        [
            dmc.Title(info.name, order=2, className="rt-run-name"),
            badge(info.status, "run-status"),
            *[dmc.Badge(tag, variant="outline", color="gray", radius="sm", tt="none") for tag in info.tags[:6]],
            dmc.Text(" · ".join(part for part in parts if part), c="dimmed", size="sm"),
        ],
        gap="sm",
    )
    return [line, _tabs(info.id, tab, prefix)]


def _hosts(info: RunInfo) -> str:
    hosts = sorted(set(info.hosts))
    if not hosts:
        return ""
    return f"on {plain(hosts[0], 40)}" if len(hosts) == 1 else f"on {len(hosts)} hosts"


def _tabs(run_id: str, active: str, prefix: str) -> html.Nav:
    links = [
        dcc.Link(
            one.word,
            href=routes.href(Route(one.name, run_id), prefix),
            className="rt-tab rt-tab-active" if one.name == active else "rt-tab",
            id=f"tab-{one.name}",
        )
        for one in PAGES
        if one.files is not None
    ]
    return html.Nav(links, className="rt-tabs")


def address_store(page: str) -> html.Div:
    """Return what a page's callbacks write the address of the view into, as ``{"path", "search"}``, or a new place."""
    names = ("address", "addressed", "place", "gone")
    return html.Div([dcc.Store(id=f"{page}-{name}") for name in names], hidden=True)


def age(page: str) -> dmc.Text:
    """Return the element in which the page of a running job states its age."""
    return dmc.Text(id=f"{page}-age", size="sm", c="dimmed", className="rt-as-of")


def drawn_store(page: Any) -> dict[str, Any]:
    """Return the name of the store in which the next polls find what a page has drawn."""
    return {"type": "page-drawn", "page": page}


def follow_address(app: Dash, page: str) -> None:
    """Let the browser's address follow the page's view."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "address"), Output(f"{page}-addressed", "data"), Input(f"{page}-address", "data")
    )


def follow_place(app: Dash, page: str) -> None:
    """Let the browser go to the address that a callback of the page writes into its ``<page>-place``."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "go"), Output(f"{page}-gone", "data"), Input(f"{page}-place", "data")
    )


def page_frame(page: str, charts: Sequence[Any], nothing: dmc.Card, more: Sequence[Any] = ()) -> html.Div:
    """Return a page that its callback fills: what cannot be read, ``more``, charts, or the reason for none."""
    return html.Div(
        [
            html.Div(id=f"{page}-problems"),
            *more,
            html.Div(dmc.Stack(list(charts), gap="md"), id=f"{page}-charts", style=shown(False)),
            html.Div(nothing, id=f"{page}-empty", style=shown(False)),
        ]
    )


def shown(visible: object) -> dict[str, str]:
    """Return the style that shows or hides a part of a page."""
    return {} if visible else {"display": "none"}
