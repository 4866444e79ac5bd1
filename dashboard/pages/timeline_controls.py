"""The controls of the timeline's page: jump, search, ranks, phases, and the lanes below them."""

from __future__ import annotations

import base64
from typing import Any

import dash_mantine_components as dmc
from dash import html

from ringtune.dashboard.components import graph
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.dashboard.data.timeline.path import PathTable
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.figures.timeline import MARGINS
from ringtune.dashboard.figures.timeline_overlays import WORDS
from ringtune.dashboard.figures.timeline_sketch import sketch
from ringtune.dashboard.pages import timeline_state as state
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import PHASES
from ringtune.timeline.analysis.critical_path import CAUSES

RANK_LIMIT = 16
"""With more ranks each is one line at first, because lanes for every phase would be too small to read."""


def controls(route: Route, ranks: list[str]) -> list[dmc.Group]:
    """Return the controls, set as the address says."""
    buttons = {
        name: dmc.Button(word, id=f"timeline-{name}", variant="default")
        for name, word in (("next", "Next match"), ("start", "First steps"), ("fit", "Whole run"))
    }
    switches = [
        dmc.Switch(id=f"timeline-{name}", label=label, checked=checked, size="sm")
        for name, label, checked in (
            ("path", "Critical path", _with_path(route)),
            ("compact", "One line a rank", _compact(route, ranks)),
        )
    ]
    first = [_search(route), buttons["next"], _step(), buttons["start"], buttons["fit"], *switches]
    return [dmc.Group(first, gap="sm"), dmc.Group([_ranks(route, ranks), _phases(route)], gap="sm", mt=8)]


def _query(route: Route, ranks: list[str]) -> Query:
    """Return what an address asks for, as the controls that are set by it say."""
    held = state.asked(route)["window"]
    return Query(
        Window(*held) if held else None,
        tuple(map(int, _chosen_ranks(route, ranks))),
        _searched(route),
        stages=state.stages_of(_chosen_phases(route)),
        compact=_compact(route, ranks),
    )


def lanes(index: TimelineIndex | None, route: Route, ranks: list[str], **config: Any) -> html.Div:
    """Return the graph of the lanes, with a picture of them laid where plotly will draw them; empty without index."""
    if index is None:
        figure = graph("timeline-graph", 520, **config)
        figure.children.append(html.Div(id="timeline-sketch"))
        return figure
    found = sketch(index, index.view(_query(route, ranks)), with_path=_with_path(route))
    figure = graph("timeline-graph", found.height, **config)
    packed = base64.b64encode(found.svg.encode()).decode()
    names = [html.Span(text, style={"top": f"{100 * at:.2f}%"}) for at, text in found.names.items()]
    place = {side: MARGINS[side[0]] for side in ("left", "right", "top", "bottom")}
    picture = html.Img(src=f"data:image/svg+xml;base64,{packed}", alt="")
    figure.children.append(html.Div([picture, *names], id="timeline-sketch", className="rt-sketch", style=place))
    return figure


def _with_path(route: Route) -> bool:
    return route.query.get("path") == "1"


def _searched(route: Route) -> str:
    return route.query.get("q", "")[:200]


def _search(route: Route) -> dmc.TextInput:
    return dmc.TextInput(
        id="timeline-search",
        value=_searched(route),
        placeholder="Search a tensor or a span …",
        debounce=350,
        w=230,
        **{"aria-label": "Search a tensor"},
    )


def _step() -> dmc.NumberInput:
    return dmc.NumberInput(
        id="timeline-step",
        placeholder="Jump to step",
        min=0,
        w=140,
        debounce=500,
        hideControls=True,
        **{"aria-label": "Step"},
    )


def _compact(route: Route, ranks: list[str]) -> bool:
    """Whether each rank is one line: as the address says, else when there are many."""
    return route.query.get("compact", "1" if len(ranks) > RANK_LIMIT else "0") == "1"


def _chosen_ranks(route: Route, ranks: list[str]) -> list[str]:
    chosen = [rank for rank in route.list("ranks") if rank in ranks]
    return chosen or (ranks[:RANK_LIMIT] if len(ranks) > RANK_LIMIT and not _compact(route, ranks) else [])


def _ranks(route: Route, ranks: list[str]) -> dmc.MultiSelect:
    chosen = _chosen_ranks(route, ranks)
    return dmc.MultiSelect(
        id="timeline-ranks",
        data=rank_options(ranks),
        value=chosen,
        placeholder="All ranks" if not chosen else "",
        clearable=True,
        w=230 if len(chosen) < 3 else 420,
        **{"aria-label": "Ranks"},
    )


def rank_options(ranks: list[str]) -> list[dict[str, str]]:
    """Return what the choice of ranks offers."""
    return [{"value": rank, "label": f"rank {rank}"} for rank in ranks]


def _chosen_phases(route: Route) -> list[str]:
    return [label for label in route.list("phases") if label in PHASES]


def _phases(route: Route) -> dmc.MultiSelect:
    chosen = _chosen_phases(route)
    return dmc.MultiSelect(
        id="timeline-phases",
        data=[{"value": label, "label": phase.label} for label, phase in PHASES.items()],
        value=chosen,
        placeholder="All phases" if not chosen else "",
        clearable=True,
        w=420,
        **{"aria-label": "Phases"},
    )


def path_legend(path: PathTable) -> list[html.Div]:
    """Return what the colours of the critical path mean: the causes that a window shows, in the order of a batch."""
    met = {CAUSES[code] for code in set(path.cause.tolist())}
    keys = [
        html.Span([html.Span(className="rt-key", style={"background": color}), words], className="rt-legend-entry")
        for cause, (words, color) in WORDS.items()
        if cause in met
    ]
    return [html.Div(["Critical path: ", *keys], className="rt-legend")] if keys else []
