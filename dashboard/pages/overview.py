"""A run at a glance: its numbers, steps over time, where a step goes, machine and settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from ringtune.dashboard.components import card, drawn_store, empty, facts, graph, problems, shown, stat, stats, table
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import failure, steps
from ringtune.dashboard.data.machine import MachineTable
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.data.step_totals import LATE_FROM, Breakdown, StepSummary
from ringtune.dashboard.data.steps import StepLine, Steps
from ringtune.dashboard.figures import steps as figures
from ringtune.dashboard.pages.overview_failure import ending, failure_of
from ringtune.dashboard.pages.stragglers import Seen, seen, timeline_href
from ringtune.dashboard.pages.stragglers_verdict import opening
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import scheme_of
from ringtune.dashboard.units import count, duration, number, percent, size


def layout(_context: Context, _route: Route) -> html.Div:
    """Return the page; its callback fills it."""
    charts = html.Div(
        dmc.Stack(
            [
                html.Div(id="overview-stats"),
                card(
                    "Step time",
                    graph("overview-steps", 280),
                    "One line a rank; a step ends with the optimizer.",
                ),
                dmc.SimpleGrid(
                    [
                        card(
                            "Where a step goes",
                            graph("overview-breakdown", 230),
                            "Exposed communication blocks training; overlapped communication runs beside computation.",
                        ),
                        card(
                            "Communication by phase",
                            graph("overview-phases", 230),
                            "Negotiation is summed over tensors that wait at the same time, so it may exceed the step.",
                        ),
                    ],
                    cols={"base": 1, "md": 2},
                    spacing="md",
                ),
            ],
            gap="md",
        ),
        id="overview-charts",
    )
    return html.Div(
        [
            dcc.Store(id="overview-shape"),
            dcc.Store(id=drawn_store("overview")),
            html.Div(id="overview-problems"),
            html.Div(id="overview-ending"),
            html.Div(id="overview-opening"),
            charts,
            html.Div(
                empty(
                    "No steps yet",
                    "Steps are counted when the training script calls its DistributedOptimizer. When the first one has "
                    "ended, this page shows step times and where they go.",
                ),
                id="overview-empty",
            ),
            html.Div(id="overview-facts"),
        ]
    )


def numbers(summary: StepSummary, ranks: int) -> list[tuple[str, str, str]]:
    """Return the numbers at the top of the page: label, value, and the line below."""
    spread = f"half within {duration(summary.low_ns)} to {duration(summary.high_ns)}"
    rate = size(summary.bytes_per_step * 1e9 / summary.median_ns) if summary.median_ns > 0 else "–"
    found = [
        ("Steps", count(summary.steps), f"on {count(ranks)} rank{'s' if ranks != 1 else ''}"),
        ("Step time, median", duration(summary.median_ns), spread),
        ("Exposed communication", percent(summary.exposed_share), "of the step"),
        ("Waiting for late ranks", percent(summary.waiting_share), "of the step"),
        ("Overlapped", percent(summary.overlapped_share), "of the communication"),
        (
            "Reduced in a step",
            size(summary.bytes_per_step),
            f"in {number(summary.batches_per_step)} batches, {rate}/s",
        ),
    ]
    if summary.latest_rank >= 0:
        late = summary.latest_lead >= LATE_FROM
        note = f"computes {percent(summary.latest_lead)} longer"
        found.append(
            ("Slowest rank", f"rank {summary.latest_rank}" if late else "none", note if late else "ranks are even")
        )
    return found


def _opening(context: Context, route: Route) -> list[dmc.Alert]:
    """Return what cost the run's job most, as far as its timeline is read."""
    run, found = context.run(route), seen(context, route, "lateness")
    if run is None:
        return []
    analysis = found.analysis if isinstance(found, Seen) else None

    def href(step: int, rank: int) -> str:
        return timeline_href(analysis, route.run, (step, rank), context.prefix) if analysis is not None else ""

    return opening(analysis, context.runs.steps(run).summary, href)


def news(context: Context, route: Route, before: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a poll, and the shape of what holds them: when it changes, the cards are made anew.

    Also what the lines of step times got longer by since they were drawn.
    """
    run = context.run(route)
    if run is None:
        return {}
    found = context.runs.steps(run)
    texts = numbers(found.summary, len(found.ranks)) if found.summary else []
    labels = (label for label, _, _ in texts)
    # What a large timeline says of the end comes only once it is prepared.
    read = context.timelines.state(run, followed=False) if run.status in ("failed", "lost") else ()
    shape = hash((run.path, run.status, run.problems, found.problems, failure.hangs(run), read, *labels))
    return {"numbers": texts, "shape": str(shape), **_grown(found, before)}


_BARS: dict[str, Callable[[Sequence[Breakdown]], figures.Bars]] = {
    "overview-breakdown": figures.breakdown_bars,
    "overview-phases": figures.phases_bars,
}


def _drawn(table: Steps, lines: Sequence[StepLine], pathname: str | None) -> dict[str, Any]:
    """Return what the next polls need to know to make lines longer and to draw bars anew."""
    unit_ns, _ = figures.scale(lines)
    units = [make(table.parts).unit()[0] for make in _BARS.values()]
    about = {"page": pathname, "number": time.monotonic_ns(), "ends": steps.ends(table), "unit_ns": unit_ns}
    return {**about, "bars": [part.rank for part in table.parts], "units": units}


def _grown(table: Steps, before: dict[str, Any]) -> dict[str, Any]:
    """Return what lines got longer by, and bars; what was drawn comes from the browser, which may send anything."""
    ends, number = before.get("ends"), before.get("number")
    if not isinstance(ends, list) or not all(isinstance(one, list) and len(one) == 2 for one in ends):
        return {}
    known = before.get("units") if isinstance(before.get("units"), list) else []
    units = [before.get("unit_ns"), *(known or [])]
    if len(units) != 1 + len(_BARS) or not all(isinstance(one, (int, float)) and one > 0 for one in units):
        return {}
    points = steps.later(table, ends)
    if points is None or [part.rank for part in table.parts] != before.get("bars"):
        return {"anew": number}
    if not points:
        return {}
    drawn = {**before, "ends": steps.ends(table)}
    changed = [{"graph": "overview-steps", "traces": figures.longer(points, units[0])}]
    changed += [
        {"graph": graph_, "traces": figures.bars_now(make(table.parts), unit_ns)}
        for (graph_, make), unit_ns in zip(_BARS.items(), units[1:], strict=True)
    ]
    return {"grown": {"number": number, "figures": changed, "drawn": drawn}}


def machine_rows(machines: MachineTable) -> list[list[str]]:
    """Return the table of machines, ranks with the same machine in one row."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for one in machines.machines:
        memory = size(one.memory_bytes) if one.memory_bytes else "–"
        key = (one.host, one.cpu, str(one.cores or "–"), memory, one.kernel, one.python)
        groups.setdefault(key, []).append(one.rank)
    return [[_rank_words(ranks), *key] for key, ranks in groups.items()]


def _rank_words(ranks: list[int]) -> str:
    if len(ranks) <= 4:
        return ", ".join(map(str, ranks))
    return f"{ranks[0]} … {ranks[-1]} ({len(ranks)})"


def run_facts(run: RunInfo) -> list[tuple[str, str]]:
    """Return command, knobs, versions and configuration as name and value."""
    pairs = [("Command", " ".join(run.command))] if run.command else []
    if run.knobs:
        shown_knobs = [
            (name, size(v) if name.endswith("_bytes") else duration(v) if name.endswith("_ns") else str(v))
            for name, v in run.knobs.items()
        ]
        pairs.append(("Knobs at the start", ", ".join(f"{name} {value}" for name, value in shown_knobs)))
    if run.versions:
        pairs.append(("Versions", ", ".join(f"{name} {version}" for name, version in run.versions.items() if version)))
    return pairs + sorted(run.config.items()) + [("Folder", str(run.path))]


def _fact_cards(run: RunInfo, machines: MachineTable) -> dmc.Stack:
    cards = []
    if machines.machines:
        head = ["Ranks", "Host", "Processor", "Cores", "Memory", "Kernel", "Python"]
        cards.append(card("Machines", table(head, machine_rows(machines))))
    cards.append(card("Settings", facts(run_facts(run))))
    return dmc.Stack(cards, gap="md", mt="md")


def register(app: Dash, context: Context) -> None:
    """Register the page's callbacks."""

    @app.callback(
        Output("overview-problems", "children"),
        Output("overview-ending", "children"),
        Output("overview-stats", "children"),
        Output("overview-charts", "style"),
        Output("overview-empty", "style"),
        Input("overview-shape", "data"),
        State("url", "pathname"),
    )
    def count_up(_shape: str | None, pathname: str | None) -> tuple[Any, ...]:
        run = context.run(context.route(pathname, ""))
        if run is None:
            return (no_update,) * 5
        found, machines = context.runs.steps(run), context.runs.machines(run)
        texts = numbers(found.summary, len(found.ranks)) if found.summary else []
        return (
            problems([*run.problems, *found.problems, *machines.problems]),
            ending(run, failure_of(context, run)),
            stats([stat(*one, at) for at, one in enumerate(texts)]),
            shown(found.summary),
            shown(not found.summary),
        )

    @app.callback(
        Output("overview-steps", "figure"),
        Output("overview-breakdown", "figure"),
        Output("overview-phases", "figure"),
        Output("overview-facts", "children"),
        Output("overview-opening", "children"),
        Output(drawn_store("overview"), "data"),
        Input("slow", "data"),
        Input("scheme", "data"),
        State("url", "pathname"),
    )
    def draw(_slow: dict[str, Any] | None, scheme: str | None, pathname: str | None) -> tuple[Any, ...]:
        route = context.route(pathname, "")
        run = context.run(route)
        if run is None:
            return (no_update,) * 6
        with context.cpu_budget.drawing(route):
            found, look = context.runs.steps(run), scheme_of(scheme)
            lines = steps.lines(found)
            return (
                figures.step_times(lines, look, 280),
                figures.breakdown(found.parts, look),
                figures.phases(found.parts, look),
                _fact_cards(run, context.runs.machines(run)),
                _opening(context, route),
                _drawn(found, lines, pathname),
            )

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ringtune", "numbers"),
        Output({"type": "poll-value", "at": ALL}, "children"),
        Output({"type": "poll-note", "at": ALL}, "children"),
        Output("overview-shape", "data"),
        Input("news", "data"),
        State({"type": "poll-value", "at": ALL}, "children"),
        State({"type": "poll-note", "at": ALL}, "children"),
        State("overview-shape", "data"),
    )
