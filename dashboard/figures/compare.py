"""Figures of runs side by side: spreads of step times, and differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ringtune.dashboard import theme
from ringtune.dashboard.data.compare import Spread
from ringtune.dashboard.data.timeline.index import TimelineIndex, View
from ringtune.dashboard.figures.timeline import timeline
from ringtune.dashboard.figures.timeline_overlays import NS_PER_AXIS
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import duration, markup, percent, time_scale

TICKS = 8


def spreads(found: Sequence[Spread], scheme: Scheme = "light", height: int = 300) -> go.Figure:
    """Draw how step times are spread, one area a run; the upright lines are medians."""
    figure = theme.blank(scheme, height)
    factor, unit = spreads_unit(found)
    for place, one in enumerate(found):
        color, edges = theme.rank_color(place), one.edges_ns / factor
        beyond = f"<br>{percent(one.beyond)} of its steps are longer than all bins" if one.beyond else ""
        figure.add_trace(
            go.Scatter(
                x=np.repeat(edges, 2)[1:-1],
                y=_heights(one),
                name=markup(one.label, 60),
                mode="lines",
                line={"color": color, "width": 1.4, "dash": theme.DASHES[place % len(theme.DASHES)]},
                fill="tozeroy",
                fillcolor=_faint(color),
                hovertemplate=f"{markup(one.label, 60)}: %{{y:.3~g}} % of steps at %{{x:.4~g}} {unit}"
                f"<br>median {duration(one.median_ns)}{beyond}<extra></extra>",
            )
        )
        figure.add_vline(x=one.median_ns / factor, line={"color": color, "width": 1.6})
    figure.update_layout(showlegend=True, hovermode="closest")
    figure.update_xaxes(title_text=f"Step time ({unit})")
    figure.update_yaxes(title_text="Share of steps (%)", rangemode="tozero")
    return figure


def spreads_unit(found: Sequence[Spread]) -> tuple[float, str]:
    """Return the unit of `spreads`' axis in nanoseconds, and its name."""
    return time_scale(max((one.median_ns for one in found), default=1e6))


def spread_now(found: Spread) -> list[dict[str, Any]]:
    """Return the area of one run of `spreads` as it is now, as a poll sends it."""
    return [{"name": markup(found.label, 60), "columns": {"y": {"at": 0, "values": _heights(found).tolist()}}}]


def _heights(found: Spread) -> NDArray[np.float64]:
    return np.repeat(100 * found.share, 2)


def _faint(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def still(index: TimelineIndex, view: View, scheme: Scheme) -> go.Figure:
    """Draw a view as a picture: its time counts from the window's begin, and the legend stays away."""
    figure = timeline(index, view, scheme)
    begin, length = view.window.begin_ns, view.window.length_ns
    factor, unit = time_scale(length)
    gap = _gap(length / factor)
    marks = [gap * n for n in range(int(length / factor / gap) + 1)]
    figure.update_xaxes(
        title_text=f"Time since the step began ({unit})",
        tickvals=[(begin + mark * factor) / NS_PER_AXIS for mark in marks],
        ticktext=[f"{mark:g}" for mark in marks],
        fixedrange=True,
    )
    figure.update_layout(showlegend=True, dragmode=False)
    return figure


def _gap(length: float) -> float:
    """Return a round distance of ticks: 1, 2 or 5 times a power of ten."""
    rough = length / TICKS
    power = 10.0 ** np.floor(np.log10(rough))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= rough))
