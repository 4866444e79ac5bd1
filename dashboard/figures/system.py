"""Figures of what ranks and machines used over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.system import Floats, Line
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import markup

UNITS = {
    "cpu": (1.0, "CPU (cores)"),
    "memory": (2.0**30, "Resident memory (GiB)"),
    "busy": (1.0, "Busy cores (%)"),
    "used": (1.0, "Used memory (%)"),
    "network": (1e6, "Traffic (MB/s)"),
    "gpu": (1.0, "GPU busy (%)"),
}
"""By figure: what one unit of its axis is, and the axis' title."""


def over_time(name: str, lines: Sequence[Line], scheme: Scheme = "light", height: int = 270) -> go.Figure:
    """Draw one of `UNITS` over time, a line a rank, machine or GPU."""
    figure = theme.blank(scheme, height)
    factor, title = UNITS[name]
    for line in lines:
        label, (x, y) = markup(line.name, 60), _points(line, factor)
        figure.add_trace(
            go.Scatter(
                x=x,
                y=y,
                name=label,
                mode="lines" if len(line.seconds) > 2 else "lines+markers",
                line={"color": theme.rank_color(line.key), "width": 1.6, "dash": theme.rank_dash(line.key)},
                hovertemplate=f"{label}<br>%{{x:.1f}} s: %{{y:.4~g}}<extra></extra>",
            )
        )
    figure.update_layout(hovermode="closest", showlegend=len(lines) > 1)
    figure.update_xaxes(title_text="Time since the first sample (s)", rangemode="tozero")
    figure.update_yaxes(title_text=title, rangemode="tozero")
    return figure if lines else theme.say(figure, "Nothing was sampled")


def longer(name: str, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the values to append to the lines of one of `UNITS`, by their names."""
    factor, _ = UNITS[name]
    found = []
    for line in lines:
        x, y = _points(line, factor)
        if len(x):
            values = [value if math.isfinite(value) else None for value in y.tolist()]
            found.append({"name": markup(line.name, 60), "columns": {"x": x.tolist(), "y": values}})
    return found


def _points(line: Line, factor: float) -> tuple[Floats, Floats]:
    return np.round(line.seconds, 3), np.round(line.values / factor, 4)
