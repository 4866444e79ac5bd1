"""The timeline of all ranks: zoom, pan, search, jump, follow; every answer holds a few thousand shapes at most."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from ringtune.dashboard.components import address_store, drawn_store, empty, follow_address, graph, problems, shown
from ringtune.dashboard.context import Context
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.live.tail import drawn, tail
from ringtune.dashboard.data.timeline.collective import Followed, follow
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex, View
from ringtune.dashboard.data.timeline.overview import overview
from ringtune.dashboard.data.timeline.prepare import Preparing
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.figures import timeline as figures
from ringtune.dashboard.figures.timeline_minimap import MAP_PIXELS, minimap
from ringtune.dashboard.figures.timeline_overlays import NS_PER_AXIS
from ringtune.dashboard.pages import timeline_state as state
from ringtune.dashboard.pages.progress import as_of, progress
from ringtune.dashboard.pages.timeline_batch import followed_card
from ringtune.dashboard.pages.timeline_controls import RANK_LIMIT, controls, lanes, path_legend, rank_options
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import scheme_of
from ringtune.dashboard.units import duration

AGAIN_MS = 1000
"""When new shapes do not fit onto a drawing, it is replaced after this time, the next one after twice the time."""
MARGIN = 0.6
"""Share of the window that is answered beyond it on both sides, so that a small pan finds something at once."""

_NOTHING = (
    "No timeline was recorded",
    "With a timeline, every rank records when each tensor was negotiated, queued, copied and sent. Start the job with:",
    "ringtune run -np 2 --timeline trace.json python train.py",
)
_HINT = (
    "Zoom: scroll, keys w and s, or + and -. Pan: drag, keys a and d. Zoom to a selection: Shift and drag. "
    "Click a span to follow its batch, f zooms to it."
)


def layout(context: Context, route: Route) -> html.Div:
    """Return the page with a sketch of the timeline, which its callback draws."""
    with _index(context, route) as index:
        ranks = [str(rank) for rank in index.ranks] if isinstance(index, TimelineIndex) else []
        state_of = index if isinstance(index, Preparing) else None
        found, nothing = isinstance(index, TimelineIndex), index is None
        drawn = [graph("timeline-map", MAP_PIXELS, displayModeBar=False)]
        drawn.append(lanes(index if isinstance(index, TimelineIndex) else None, route, ranks, **_ZOOM))
    words = dmc.Group(
        [
            dmc.Text("\u00a0", id="timeline-note", size="sm", c="dimmed"),
            dmc.Text(_HINT, size="xs", c="dimmed"),
        ],
        justify="space-between",
        mt=8,
    )
    body = [*controls(route, ranks), words, html.Div(id="timeline-legend"), *drawn]
    return html.Div(
        [
            html.Div(id="timeline-problems"),
            address_store("timeline"),
            dcc.Store(id="timeline-window", data=state.asked(route)),
            dcc.Store(id="timeline-event"),
            dcc.Store(id="timeline-poll"),
            dcc.Store(id=drawn_store("timeline")),
            html.Div(progress(state_of), id="timeline-preparing"),
            html.Div(
                [dmc.Card(body, withBorder=True, radius="md", p="md"), html.Div(id="timeline-followed")],
                id="timeline-charts",
                style=shown(found),
            ),
            html.Div(empty(*_NOTHING), id="timeline-empty", style=shown(nothing)),
        ]
    )


_ZOOM: dict[str, Any] = {"scrollZoom": True, "doubleClick": "autosize"}


@contextmanager
def _index(context: Context, route: Route) -> Iterator[TimelineIndex | Preparing | str | None]:
    """Lend the index of the route's run, or its progress, a sentence why there is none, or None without a recording."""
    run = context.run(route)
    with ExitStack() as stack:
        index: TimelineIndex | Preparing | str | None = None
        try:
            index = stack.enter_context(context.timelines.watched(run)) if run is not None else None
        except Unreadable as error:
            index = str(error)
        yield None if isinstance(index, TimelineIndex) and not index.lanes else index


@dataclass(frozen=True)
class _Asked:
    """All that the callback was given, and what of it changed."""

    trigger: str
    controls: state.Controls
    ranks: tuple[int, ...]
    phases: list[str]
    with_path: bool
    compact: bool
    batch: int
    revision: int
    scheme: Any


def _asked_of(values: dict[str, Any], trigger: str) -> _Asked:
    held, event = values["held"] or {}, (values["event"] or {}).get("value")
    batch = int(held.get("batch") or 0)
    if trigger == "timeline-graph.clickData":
        batch = state.clicked_batch(event) or batch
    elif trigger == "timeline-unfollow.n_clicks":
        batch = 0
    before = Window(*held["window"]) if held.get("window") else None
    return _Asked(
        trigger=trigger,
        controls=state.Controls(event, values["search"] or "", values["step"], before),
        ranks=tuple(int(rank) for rank in values["ranks"] or [] if rank.isdigit()),
        phases=[label for label in values["phases"] or [] if isinstance(label, str)],
        with_path=bool(values["path"]),
        compact=bool(values["compact"]),
        batch=batch,
        revision=int(held.get("revision", 0)),
        scheme=scheme_of(values["scheme"]),
    )


@dataclass(frozen=True)
class _Live:
    """Whose timeline is drawn, and the status of a live one; empty when it is none.

    ``again``: how often in a row it was drawn because new shapes did not fit onto the drawing. ``pace``: the moment of
    its data, where it cannot be followed.
    """

    pathname: str | None
    status: str = ""
    again: int = 0
    pace: str = ""


def _drawn(index: TimelineIndex, asked: _Asked, view: View, live: _Live) -> dict[str, Any] | None:
    """Return what the next polls need to know to add new shapes; None where they cannot."""
    if not live.status:
        return None
    whole = view.window == index.clamped(None)
    about = {"page": live.pathname, "status": live.status, "number": time.monotonic_ns(), "again": live.again}
    shows = [asked.controls.search, list(asked.ranks), asked.phases, asked.compact]
    return {**about, "range": _range(view.window), "lanes": drawn(view.lanes) if whole else None, "shows": shows}


def _query(shows: Any) -> Query | None:
    """Return what a view of the whole timeline shows; from the browser, which may send anything."""
    if not isinstance(shows, list) or len(shows) != 4:
        return None
    search, ranks, phases, compact = shows
    if not isinstance(search, str) or not isinstance(ranks, list) or not isinstance(phases, list):
        return None
    numbers = tuple(rank for rank in ranks if isinstance(rank, int))
    stages = state.stages_of([one for one in phases if isinstance(one, str)])
    return Query(None, numbers, search[:200], stages=stages, compact=compact is True)


def _range(window: Window) -> list[float]:
    return [window.begin_ns / NS_PER_AXIS, window.end_ns / NS_PER_AXIS]


def news(context: Context, route: Route, before: dict[str, Any]) -> dict[str, Any]:
    """Return what a live timeline that is shown as a whole got since it was drawn, in as few bars as possible.

    Where they do not fit onto the drawing, it has to be drawn again, after a time that doubles if that did not help.
    """
    query = _query(before.get("shows"))
    if not before.get("lanes") or query is None:
        return {}
    number = before.get("number")
    with _index(context, route) as index:
        if not isinstance(index, TimelineIndex):
            return {}
        found = tail(index, before["lanes"], query)
        if found is None:
            return {
                "again": number,
                "poll_interval_ms": min(context.redraw_interval_ms(route), AGAIN_MS << _failures(before)),
            }
        now = {**before, "lanes": drawn(found.lanes), "range": _range(found.window), "again": 0}
        traces = figures.more_bars(index, found)
        bars = {"graph": "timeline-graph", "traces": traces}
        said = {} if found.searched else {"texts": [["timeline-note", state.note_of_all(found)]]}
        return {"grown": {"number": number, "figures": [bars], "drawn": now}, **said}


def _failures(before: dict[str, Any]) -> int:
    """How often in a row drawings did not last; from the browser, which may send anything."""
    failed = before.get("again")
    return min(10, failed) if isinstance(failed, int) and failed >= 0 else 0


def _drawn_again(known: Any, pathname: str | None, poll: Any) -> int:
    """How often in a row it will have been drawn again because new shapes did not fit onto it."""
    same = isinstance(known, dict) and known.get("page") == pathname
    return 1 + _failures(known) if same and str(poll).endswith("again") else 0


def _answer(index: TimelineIndex, asked: _Asked, live: _Live) -> dict[str, Any]:
    """Draw what was asked for."""
    pathname = live.pathname
    window, forced = state.next_window(index, asked.trigger, asked.controls)
    stages = state.stages_of(asked.phases)
    view = index.view(Query(window, asked.ranks, asked.controls.search, MARGIN, stages, asked.compact))
    followed, revision = follow(index, asked.batch), asked.revision + forced
    extras = _extras(index, view, asked, followed)
    figure = figures.timeline(index, view, asked.scheme, extras)
    step = asked.controls.step
    missed = step if asked.trigger.startswith("timeline-step") and step not in (None, "") and not forced else None
    held = {"revision": revision, "batch": followed.batch if followed else 0}
    return {
        "figure": figure.update_xaxes(uirevision=revision),
        "drawn": _drawn(index, asked, view, live),
        "map": minimap(overview(index), view.window, asked.scheme),
        "note": state.note(index, view, missed),
        "legend": path_legend(extras.path[0]) if extras.path else [],
        "held": {**held, "window": [window.begin_ns, window.end_ns] if window else None},
        "problems": problems(index.problems),
        "charts": shown(True),
        "empty": shown(False),
        "address": state.address(pathname, window, _more(asked, held["batch"], len(index.ranks))),
        "preparing": as_of(live.pace or _path_words(index, asked, live)),
        "followed": followed_card(followed),
        "options": rank_options([str(rank) for rank in index.ranks]),
    }


def _path_words(index: TimelineIndex, asked: _Asked, live: _Live) -> str:
    """Return how far the critical path of a running job reaches; the lanes reach further."""
    path = index.known_path if asked.with_path and live.status else None
    if path is None or not len(path.end_ns):
        return ""
    reach = duration(float(path.end_ns.max()))
    return f"The job is running. The critical path is that of its first {reach}: it is recomputed now and then."


def _extras(index: TimelineIndex, view: View, asked: _Asked, followed: Followed | None) -> figures.Extras:
    """What lies over the lanes, a little beyond the window."""
    if not asked.with_path:
        return figures.Extras(None, followed)
    wide = view.window.widened(MARGIN / 4)
    return figures.Extras(index.path().within(wide.begin_ns, wide.end_ns), followed)


def _more(asked: _Asked, batch: int, ranks: int) -> dict[str, str]:
    """What the address says besides the window; what is as it would be anyway is empty."""
    return {
        "q": asked.controls.search,
        "ranks": ",".join(map(str, asked.ranks)),
        "phases": ",".join(asked.phases),
        "path": "1" if asked.with_path else "",
        "compact": "1" if asked.compact else "0" if ranks > RANK_LIMIT else "",
        "batch": str(batch) if batch else "",
    }


def _nothing(index: Preparing | str | None) -> dict[str, Any]:
    """Return the reason why nothing is drawn."""
    return {
        **dict.fromkeys(_OUTPUTS, no_update),
        "note": "",
        "legend": [],
        "problems": problems([index] if isinstance(index, str) else []),
        "charts": shown(False),
        "empty": shown(index is None),
        "preparing": progress(index if isinstance(index, Preparing) else None),
        "followed": [],
        "drawn": None,
    }


_OUTPUTS = {
    "figure": Output("timeline-graph", "figure"),
    "map": Output("timeline-map", "figure"),
    "note": Output("timeline-note", "children"),
    "legend": Output("timeline-legend", "children"),
    "held": Output("timeline-window", "data"),
    "problems": Output("timeline-problems", "children"),
    "charts": Output("timeline-charts", "style"),
    "empty": Output("timeline-empty", "style"),
    "address": Output("timeline-address", "data"),
    "preparing": Output("timeline-preparing", "children"),
    "followed": Output("timeline-followed", "children"),
    "options": Output("timeline-ranks", "data"),
    "drawn": Output(drawn_store("timeline"), "data"),
}
_INPUTS = {
    "event": Input("timeline-event", "data"),
    "search": Input("timeline-search", "value"),
    "next": Input("timeline-next", "n_clicks"),
    "step": Input("timeline-step", "value"),
    "ranks": Input("timeline-ranks", "value"),
    "phases": Input("timeline-phases", "value"),
    "path": Input("timeline-path", "checked"),
    "compact": Input("timeline-compact", "checked"),
    "start": Input("timeline-start", "n_clicks"),
    "fit": Input("timeline-fit", "n_clicks"),
    "scheme": Input("scheme", "data"),
    "poll": Input("timeline-poll", "data"),
    "held": State("timeline-window", "data"),
    "pathname": State("url", "pathname"),
    "known": State("drawn", "data"),
}


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(output=_OUTPUTS, inputs={"values": _INPUTS})
    def draw(values: dict[str, Any]) -> dict[str, Any]:
        route = context.route(values["pathname"], "")
        with context.cpu_budget.drawing(route), _index(context, route) as index:
            if not isinstance(index, TimelineIndex):
                return _nothing(index)
            run = context.run(route)
            live = _Live(values["pathname"])
            if run is not None and run.status == "live":
                live = _Live(
                    values["pathname"],
                    context.stamp(route).partition(":")[0],
                    _drawn_again(values["known"], values["pathname"], values["poll"]),
                    "" if context.live.follows(run) else context.timelines.pace_words(run),
                )
            return _answer(index, _asked_of(values, _trigger(values)), live)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "timelineEvent"),
        Output("timeline-event", "data"),
        Input("timeline-graph", "relayoutData"),
        Input("timeline-graph", "clickData"),
        Input("timeline-map", "selectedData"),
        Input("timeline-map", "clickData"),
        Input("timeline-unfollow", "n_clicks", allow_optional=True),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "timelinePoll"),
        Output("timeline-poll", "data"),
        Input("poll", "n_intervals"),
        Input("stamp", "data"),
        Input("slow", "data"),
        Input("news", "data"),
        State("drawn", "data"),
        State("timeline-poll", "data"),
    )

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "timelineSketch"),
        Output("timeline-sketch", "className"),
        Input("timeline-window", "data"),
        prevent_initial_call=True,
    )
    follow_address(app, "timeline")


def _trigger(values: dict[str, Any]) -> str:
    """Return what the user did, as ``id.property``; what the page did by itself only when there is nothing else."""
    triggers = [one["prop_id"] for one in ctx.triggered]
    done = [one for one in triggers if one not in ("timeline-poll.data", "scheme.data")] or triggers
    if done and done[0] == "timeline-event.data":
        return str((values["event"] or {}).get("from", ""))
    return str(done[0]) if done else ""
