"""Figures of communication: exposed and overlapped, phases, bandwidth by size, batch fill, waiting for peers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ringtune.dashboard import theme
from ringtune.dashboard.data import communication
from ringtune.dashboard.data.analysis import Analysis
from ringtune.dashboard.data.communication import Exposed, RankPhases, Waits
from ringtune.dashboard.data.traffic import FILL_BINS
from ringtune.dashboard.theme import PHASES, Scheme
from ringtune.dashboard.units import duration, rate, size, time_scale
from ringtune.timeline.vocabulary import KINDS

BAR_LIMIT_RANKS = 64
KIND_COLORS = dict(
    zip(KINDS, (theme.BLUE, theme.GREEN, theme.OCHRE, theme.GREY, theme.PURPLE, theme.SKY), strict=False)
)

Bars = Sequence[tuple[str, str, Sequence[float]]]
"""Name, colour and value by rank."""


@dataclass(frozen=True)
class Rows:
    """Bars by rank: ranks from the top, and every kind of bar."""

    ranks: list[int]
    bars: Bars
    mode: str = "stack"

    def unit(self) -> tuple[float, str]:
        """The unit of the axis in nanoseconds, and its name."""
        reach = [sum(values) for values in zip(*(values for _, _, values in self.bars), strict=True)]
        if self.mode == "group":
            reach = [value for _, _, values in self.bars for value in values]
        return time_scale(max(reach, default=1.0))

    def shown(self) -> Bars:
        """The bars that have a length; all where bars stand side by side, so that none changes its position."""
        return [bar for bar in self.bars if any(bar[2]) or self.mode == "group"]


def bars(found: Analysis) -> dict[str, tuple[float, Rows]]:
    """Return the bars of an analysis' three figures of sums, by name, and their units in nanoseconds."""
    rows = {
        "exposed": exposed_rows(communication.exposed(found)),
        "phases": phases_rows(communication.phases(found)),
        "waits": waits_rows(communication.waits(found)),
    }
    kept = {name: Rows(one.ranks, one.shown(), one.mode) for name, one in rows.items()}
    return {name: (one.unit()[0], one) for name, one in kept.items()}


def exposed_rows(rows: Sequence[Exposed]) -> Rows:
    """Return each rank's communication and waiting as parts that never overlap."""
    rows = rows[:BAR_LIMIT_RANKS]
    parts = (
        ("Communicating, overlapped", theme.OVERLAPPED_COLOR, [row.overlapped_ns for row in rows]),
        ("Communicating, exposed", theme.EXPOSED_COLOR, [row.exposed_ns for row in rows]),
        ("Waiting for a late rank", theme.LATE_COLOR, [row.late_ns for row in rows]),
        ("Waiting for a copy", theme.PHASES["copy_in"].color, [row.copying_ns for row in rows]),
        ("Waiting for control", theme.PHASES["negotiate"].color, [row.other_ns for row in rows]),
    )
    return Rows([row.rank for row in rows], parts)


def exposed(rows: Sequence[Exposed], scheme: Scheme = "light") -> go.Figure:
    """Draw each rank's communication and waiting."""
    figure = _ranks(exposed_rows(rows), scheme)
    return figure if rows else theme.say(figure, "The timeline does not say when training was blocked")


def phases_rows(rows: Sequence[RankPhases]) -> Rows:
    """Return how long each phase was under way on each rank."""
    rows = rows[:BAR_LIMIT_RANKS]
    labels = [label for label in PHASES if any(label in row.busy_ns for row in rows)]
    parts = [
        (PHASES[label].label, PHASES[label].color, [row.busy_ns.get(label, 0.0) for row in rows]) for label in labels
    ]
    return Rows([row.rank for row in rows], parts, "group")


def phases(rows: Sequence[RankPhases], scheme: Scheme = "light") -> go.Figure:
    """Draw how long each phase was under way on each rank."""
    return _ranks(phases_rows(rows), scheme)


def waits_rows(found: Waits) -> Rows:
    """Return why tensors that were ready did not move: control, and waiting for which rank."""
    shown = slice(0, BAR_LIMIT_RANKS)
    parts: list[tuple[str, str, Sequence[float]]] = [("Control", theme.COMPUTE_COLOR, found.control_ns[shown])]
    colors = [color for color in theme.RANK_COLORS if color != theme.GREY]
    for peer, waited in zip(found.peers, found.waited_ns, strict=True):
        # A rank's own colour, or another that none of the others has.
        color = theme.GREY if peer < 0 else theme.rank_color(peer) if theme.rank_color(peer) in colors else colors[0]
        colors = [other for other in colors if other != color]
        parts.append((f"Waiting for rank {peer}" if peer >= 0 else "Waiting for others", color, waited[shown]))
    return Rows(list(found.ranks[shown]), parts)


def waits(found: Waits, scheme: Scheme = "light") -> go.Figure:
    """Draw why tensors that were ready did not move."""
    figure = _ranks(waits_rows(found), scheme)
    return figure if len(figure.data) else theme.say(figure, "No tensor waited for another rank")


def _ranks(rows: Rows, scheme: Scheme) -> go.Figure:
    count, thick = len(rows.ranks), 46 if rows.mode == "stack" else 74
    figure = theme.blank(scheme, max(220, 110 + thick * count if count <= 6 else 110 + 6 * thick + 14 * (count - 6)))
    factor, unit = rows.unit()
    names, colors = [f"rank {rank}" for rank in rows.ranks], {name: color for name, color, _ in rows.bars}
    for one in bars_now(Rows(rows.ranks, rows.shown(), rows.mode), factor):
        columns = one["columns"]
        figure.add_trace(
            go.Bar(
                name=one["name"],
                orientation="h",
                y=names,
                x=columns["x"]["values"],
                marker={"color": colors[one["name"]], "line": {"width": 0}},
                hovertext=columns["hovertext"]["values"],
                hovertemplate="%{hovertext}<br>mean of a step<extra></extra>",
            )
        )
    figure.update_layout(barmode=rows.mode, bargap=0.32, bargroupgap=0.06, legend={"traceorder": "normal"})
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title_text=f"Mean time a step ({unit})", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def bars_now(rows: Rows, unit_ns: float) -> list[dict[str, Any]]:
    """Return how long bars are, as a poll sends it: the columns of each trace."""
    names = [f"rank {rank}" for rank in rows.ranks]
    return [
        {
            "name": name,
            "columns": {
                "x": {"at": 0, "values": [value / unit_ns for value in values]},
                "hovertext": {
                    "at": 0,
                    "values": [f"{rank} · {name}: {duration(v)}" for rank, v in zip(names, values, strict=True)],
                },
            },
        }
        for name, _, values in rows.bars
    ]


Columns = Mapping[str, NDArray[Any]]


def bandwidth(columns: Columns, limit: tuple[float, str] | None, scheme: Scheme = "light") -> go.Figure:
    """Draw bus bandwidth against size: single batches, the median while all ranks moved, and as the ranks saw it.

    Args:
        columns: See `ringtune.dashboard.data.traffic`.
        limit: The link's limit in bytes/s, and its name; None when it is unknown.
        scheme: Light or dark.
    """
    figure = theme.blank(scheme, 360)
    for code in np.unique(columns["bin_kind"]).tolist():
        _bandwidth_of(figure, columns, code)
    volumes = columns["bin_bytes"]
    if limit is not None and len(volumes):
        figure.add_trace(
            go.Scatter(
                x=[float(volumes.min()) / 2, float(volumes.max()) * 2],
                y=[limit[0] / 1e9] * 2,
                name=limit[1],
                mode="lines",
                line={"color": theme.GREY, "width": 1.6, "dash": "dash"},
                hovertemplate=f"{limit[1]}: {rate(limit[0])}<extra></extra>",
            )
        )
    ends = (float(volumes.min()) / 2, float(volumes.max()) * 2) if len(volumes) else (1.0, 4.0**10)
    ticks = [2.0**power for power in range(0, 40, 2 if ends[1] / ends[0] > 2**10 else 1)]
    figure.update_xaxes(
        title_text="Batch (bytes)",
        type="log",
        range=[math.log10(end) for end in ends],
        tickvals=ticks,
        ticktext=[size(tick) for tick in ticks],
    )
    figure.update_yaxes(title_text="Bus bandwidth (GB/s)", rangemode="tozero")
    return figure if len(volumes) else theme.say(figure, "No batch used the links between ranks")


def _bandwidth_of(figure: go.Figure, columns: Columns, code: int) -> None:
    kind = KINDS[code]
    name, color = kind.lower(), KIND_COLORS.get(kind, theme.GREY)
    one, bins = columns["batch_kind"] == code, columns["bin_kind"] == code
    x, median = columns["bin_bytes"][bins], columns["bin_median"][bins] / 1e9
    figure.add_trace(
        go.Scatter(
            x=columns["batch_bytes"][one],
            y=np.round(columns["batch_moving"][one] / 1e9, 4),
            name=f"{name}, batches",
            showlegend=False,
            mode="markers",
            marker={"color": color, "size": 5, "opacity": 0.28},
            hovertext=[f"{name} of {size(volume)}" for volume in columns["batch_bytes"][one].tolist()],
            hovertemplate="%{hovertext}: %{y:.4~g} GB/s<br>while all ranks moved<extra></extra>",
        )
    )
    counts = columns["bin_count"][bins].tolist()
    bars = {
        "array": np.maximum(0, columns["bin_high"][bins] / 1e9 - median),
        "arrayminus": np.maximum(0, median - columns["bin_low"][bins] / 1e9),
    }
    lines = (
        (f"{name}, all ranks moving", median, "solid", {"type": "data", "symmetric": False, "thickness": 1, **bars}),
        (f"{name}, with waiting", columns["bin_seen"][bins] / 1e9, "dot", None),
    )
    for label, y, dash, error in lines:
        figure.add_trace(
            go.Scatter(
                x=x,
                y=y,
                error_y=error,
                name=label,
                mode="lines+markers",
                line={"color": color, "width": 2, "dash": dash},
                marker={"size": 6, "color": color},
                hovertext=[f"{label}<br>{count:,} batches" for count in counts],
                hovertemplate="%{hovertext}<br>median %{y:.4~g} GB/s<extra></extra>",
            )
        )


def fill(rows: Sequence[Mapping[str, Any]], scheme: Scheme = "light") -> go.Figure:
    """Draw how many batches filled the fusion buffer how far, for every version of the knobs."""
    figure = theme.blank(scheme, 360)
    width = 100 / FILL_BINS
    places = [width * (bin_ + 0.5) for bin_ in range(FILL_BINS + 1)]
    words = [f"{width * bin_:.0f} to {width * (bin_ + 1):.0f} %" for bin_ in range(FILL_BINS)] + ["more than all of it"]
    for number, row in enumerate(rows):
        label = f"version {row['knobs_version']}: {size(row['buffer_bytes'])}"
        figure.add_trace(
            go.Bar(
                x=places,
                y=row["counts"],
                width=width * 0.92,
                name=label,
                marker={"color": theme.rank_color(number), "line": {"width": 0}},
                hovertext=words,
                hovertemplate=f"%{{y:,}} batches fill %{{hovertext}}<br>{label}<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", showlegend=True, legend={"title": {"text": "Buffer of knobs "}})
    figure.update_xaxes(title_text="Share of the fusion buffer (%)", range=[0, 100 + width])
    figure.update_yaxes(title_text="Batches")
    return figure if rows else theme.say(figure, "The timeline does not name the size of the fusion buffer")
