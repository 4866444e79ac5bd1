"""Pieces of the page of runs side by side: numbers, tables of differences, what was set differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc

from ringtune.dashboard import routes, theme
from ringtune.dashboard.components import badge, card, stat, table_cell
from ringtune.dashboard.data import compare
from ringtune.dashboard.data.compare import Beside, Contrast
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.routes import Route
from ringtune.dashboard.units import count, duration, plain, signed_percent
from ringtune.timeline.analysis.comparison import Change

ROWS = 60
SETTING_ROWS = 100

_WORDS = {"compute": "computing, ", "waiting": "waiting, "}
VERDICT_COLORS = {"slower": "red", "faster": "teal", "same": "gray", "unclear": "yellow"}
_UNCLEAR = (
    "Unclear: the interval leaves 0 out, but among so many rows the rank test (p) does not tell the runs apart; more "
    "steps would."
)
HEAD = ("What", "A, a step", "B, a step", "Difference", "95 % interval", "p", "B is")


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
        stat("B is", step.verdict, share if step.verdict in ("slower", "faster") else "as far as these steps tell"),
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
    rows = [
        dmc.TableTr([table_cell(*one) for one in zip(HEAD, _cells(change), strict=True)])
        for change in found.changes[:ROWS]
    ]
    said = [f"From the {found.source}."]
    if len(found.changes) > ROWS:
        said.append(f"{count(len(found.changes) - ROWS)} more changed less.")
    if any(change.verdict == "unclear" for change in found.changes[:ROWS]):
        said.append(_UNCLEAR)
    for run, only in zip("AB", found.only, strict=True):
        if only:
            more = f" and {len(only) - 6} more" if len(only) > 6 else ""
            said.append(f"Only in {run}: {', '.join(plain(one, 60) for one in only[:6])}{more}.")
    return [
        dmc.TableScrollContainer(
            dmc.Table(
                [head, dmc.TableTbody(rows)], verticalSpacing=5, className="rt-table rt-stacked", stickyHeader=True
            ),
            minWidth=0,
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
    """Return the runs beside A; nothing for two, which the numbers above compare."""
    if len(found) < 3:
        return []
    words = ("Run", "Status", "Ranks", "Steps", "Mean step", "Against A", "")
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(word) for word in words]))
    rows = []
    for one in found:
        link = dcc.Link(one.run.name, href=routes.href(Route("overview", one.run.id), prefix), className="rt-link")
        change = one.change
        cells = [link, badge(one.run.status), count(one.run.ranks), count(one.steps), duration(one.mean_ns)]
        cells += [f"{signed(change.difference_ns)} ({interval(change)})", change.verdict] if change else ["–", ""]
        rows.append(dmc.TableTr([table_cell(*pair) for pair in zip(words, cells, strict=True)]))
    body = dmc.Table([head, dmc.TableTbody(rows)], verticalSpacing=5, className="rt-table rt-stacked")
    return [card("All of them", dmc.TableScrollContainer(body, minWidth=0), "Differences with 95 % intervals.")]


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
