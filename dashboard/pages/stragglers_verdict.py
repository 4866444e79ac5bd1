"""Pieces of the stragglers' page: the verdict in words, and the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc

from ringtune.dashboard.components import SELECTABLE, WRAPPING, card, per_device, table
from ringtune.dashboard.data.analysis import Analysis
from ringtune.dashboard.data.lateness import LateRank, late_ranks
from ringtune.dashboard.data.step_totals import LATE_FROM, StepSummary
from ringtune.dashboard.units import count, duration, percent, plain, probability
from ringtune.timeline.analysis.stragglers import CAUSES

LISTED = 12
_NOTES = 4
"""Most notes beside the first sentence."""
Href = Callable[[int, int], str]
_NUMBER = {"type": "rightAligned", "cellClass": "rt-number ag-right-aligned-cell"}


def sentences(found: Analysis) -> list[str]:
    """Return what the job lost and to whom, worst first, or why ranks cannot be compared."""
    said = found.document["stragglers"]
    return [_said(line) for line in (said["sentences"] if said else [found.document["why_not"]])]


def _said(sentence: str) -> str:
    """Return a sentence of an analysis as it stands on a page."""
    line = plain(sentence, 400)
    return line[:1].upper() + line[1:] + "." * (not line.endswith("."))


def opening_words(found: Analysis | None, summary: StepSummary | None) -> str:
    """Return the first sentence about a run: what cost the job most and one action; empty where nothing is known.

    Args:
        found: The analysis of its timeline; None where none was recorded.
        summary: Its step logs in a few numbers.
    """
    if found is not None and found.document["headline"]:
        return _said(found.document["headline"])
    if summary is None:
        return ""
    record = "record a timeline to see where (ringtune run --timeline trace.json)"
    if summary.latest_rank >= 0 and summary.latest_lead >= LATE_FROM:
        longer = percent(summary.latest_lead)
        return f"Rank {summary.latest_rank} computes {longer} longer than the median rank: {record}."
    if summary.blocked_share >= LATE_FROM:
        parts = (
            f"{percent(summary.exposed_share)} exposed communication, {percent(summary.waiting_share)} for late ranks"
        )
        return f"Ranks were blocked for {percent(summary.blocked_share)} of the time ({parts}): {record}."
    return "Ranks are even and communication blocks nobody: profile the computing to make this job faster."


def opening(found: Analysis | None, summary: StepSummary | None, href: Href) -> list[dmc.Alert]:
    """Return the first sentence with a link to the step to look at; ``href(step, rank)`` is where a step leads."""
    words = opening_words(found, summary)
    if not words:
        return []
    said = found.document["stragglers"] if found is not None else None
    worst = said["verdicts"][0] if said and said["verdicts"] else None
    notes = [found.document["startup"], *_lacks(found)] if found is not None else []
    small = [dmc.Text(_said(note), size="xs", c="dimmed") for note in notes if note]
    text = dmc.Text([words, *_show(href(worst["worst_step"], worst["rank"]) if worst else "")], size="sm")
    return [dmc.Alert([text, *small], color=_color(found), radius="md", mb="md")]


def _lacks(found: Analysis) -> list[str]:
    """Return what the timeline lacks, which the sentence rests on."""
    more = len(found.problems) - _NOTES
    return [*found.problems[:_NOTES], *([f"{more} more such notes on the Timeline page"] if more > 0 else [])]


def _color(found: Analysis | None) -> str:
    """Return green only where no rank's lateness costs a percent of the job, and nothing is missing that may tell."""
    said = found.document["stragglers"] if found is not None else None
    if found is None or said is None:
        return "gray"
    return "orange" if said["verdicts"] else "yellow" if said["turns"] else "gray" if found.problems else "teal"


def _show(place: str) -> list[Any]:
    return [" ", dcc.Link("Show it", href=place, className="rt-link")] if place else []


def verdict(found: Analysis, href: Href) -> dmc.Alert:
    """Return who is to blame, with a link to the worst step of each; ``href(step, rank)`` is where a step leads."""
    said, lines = found.document["stragglers"], sentences(found)
    blamed = said["verdicts"] if said else []
    ranks = sorted({rank for one in blamed for rank in one["ranks"] or [one["rank"]] if rank >= 0})
    if said is None:
        title = "Ranks cannot be compared here"
    elif ranks:
        title = f"Rank {ranks[0]} makes" if len(ranks) == 1 else f"{len(ranks)} ranks make"
        title += " the others wait"
    else:
        title = "No straggler, but ranks wait for one another" if said["turns"] else "No straggler"
        title += ", but pauses of all ranks at once" * bool(blamed)
    places = [href(one["worst_step"], one["rank"]) for one in blamed] + [""] * len(lines)
    rows = [dmc.Text([line, *_show(place)], size="sm") for line, place in zip(lines, places, strict=False)]
    if found.document["startup"]:
        rows.append(dmc.Text(_said(found.document["startup"]), size="xs", c="dimmed"))
    return dmc.Alert(rows, title=title, color=_color(found), radius="md")


def tables(found: Analysis, href: Href) -> Any:
    """Return the tables; ``href(step, rank)`` is where a step leads."""
    said = found.document["stragglers"]
    if said is None:
        return None
    hint = (
        "A step counts once, with its latest batch. p: how likely a rank is last that often at random (binomial test "
        "against one in all ranks, corrected for their number). Carried over: lateness inherited from the previous "
        "collective."
    )
    ranks = sorted(late_ranks(found), key=lambda rank: not rank.verdict)
    cards = [card("Ranks, and the test", per_device(_grid(ranks), _small(ranks)), hint), _lists(said, href)]
    return dmc.Stack(cards, gap="md")


def _small(rows: list[LateRank]) -> Any:
    """Return the table of ranks for a phone."""
    head = (
        "Rank",
        "Host",
        "Straggler by",
        *(f"{cause.capitalize()}: steps, late, p" for cause in CAUSES),
        "Carried over",
    )
    cells = [
        (
            str(rank.rank),
            rank.host,
            ", ".join(rank.verdict) or "–",
            *(f"{count(last)}, {duration(total)}, {probability(p)}" for last, total, p in rank.causes.values()),
            duration(rank.carried_ns),
        )
        for rank in rows[:LISTED]
    ]
    return table(head, cells)


def _grid(rows: list[LateRank]) -> dag.AgGrid:
    columns: list[dict[str, Any]] = [
        {"field": "rank", "headerName": "Rank", "maxWidth": 80, **_NUMBER},
        {"field": "host", "headerName": "Host", "minWidth": 90},
        {"field": "verdict", "headerName": "Straggler by", "minWidth": 115, **WRAPPING},
    ]
    for cause in CAUSES:
        shown = {"function": f"params.data.{cause}_text"}
        children = [
            {"field": f"{cause}_steps", "headerName": "Steps", **_NUMBER},
            {"field": f"{cause}_ns", "headerName": "Late", "valueFormatter": shown, **_NUMBER},
            {"field": f"{cause}_p", "headerName": "p", "valueFormatter": {"function": f"params.data.{cause}_p_text"},
             **_NUMBER},
        ]  # fmt: skip
        columns.append({"headerName": cause.capitalize(), "children": children})
    carried = {"function": "params.data.carried"}
    columns.append(
        {"field": "carried_ns", "headerName": "Carried over", "minWidth": 115, "valueFormatter": carried, **_NUMBER}
    )
    return dag.AgGrid(
        id="stragglers-grid",
        rowData=[_row(rank) for rank in rows],
        columnDefs=columns,
        defaultColDef={"sortable": True, "resizable": True, "minWidth": 78},
        dashGridOptions={
            "rowHeight": 34,
            "headerHeight": 34,
            "groupHeaderHeight": 30,
            "animateRows": False,
            **SELECTABLE,
            **({"domLayout": "autoHeight"} if len(rows) <= 16 else {}),
        },
        columnSize="responsiveSizeToFit",
        className="rt-dense",
        style={"height": None if len(rows) <= 16 else 480, "width": "100%"},
    )


def _row(rank: LateRank) -> dict[str, Any]:
    row: dict[str, Any] = {
        "rank": rank.rank,
        "host": plain(rank.host, 40),
        "verdict": ", ".join(rank.verdict) or "–",
        "carried_ns": rank.carried_ns,
        "carried": duration(rank.carried_ns),
    }
    for cause, (last, total, p) in rank.causes.items():
        row |= {f"{cause}_steps": last, f"{cause}_ns": total, f"{cause}_text": duration(total)}
        row |= {f"{cause}_p": p, f"{cause}_p_text": probability(p)}
    return row


def _lists(said: dict[str, Any], href: Href) -> dmc.SimpleGrid:
    worst = [
        (_link(step["step"], href(step["step"], step["rank"])), step["cause"], str(step["rank"]),
         duration(step["lateness_ns"]))
        for step in said["worst_steps"][:LISTED]
    ]  # fmt: skip
    tensors = [
        (plain(one["tensor"], 60), f"{one['rank']} ({count(one['rank_times'])} of {count(one['times'])})"
         if one["rank"] >= 0 else "–", duration(one["total_ns"]))
        for one in said["tensors"][:LISTED]
    ]  # fmt: skip
    cards = [
        card("Worst steps", table(("Step", "Cause", "Rank", "Late"), worst), "Each leads to the timeline."),
        card("Tensors waited for", table(("Tensor", "Mostly rank", "Late, summed"), tensors), "Longest first."),
    ]
    hosts = [
        (plain(one["host"] or "–", 40), count(one["ranks"]), *(duration(one["total_ns"][cause]) for cause in CAUSES))
        for one in said["hosts"]
    ]
    if len(hosts) > 1:
        cards.append(card("Hosts", table(("Host", "Ranks", *(cause.capitalize() for cause in CAUSES)), hosts[:LISTED])))
    return dmc.SimpleGrid(cards, cols={"base": 1, "md": 2}, spacing="md")


def _link(step: int, href: str) -> Any:
    return dcc.Link(f"{step:,}", href=href, className="rt-link") if href else f"{step:,}"
