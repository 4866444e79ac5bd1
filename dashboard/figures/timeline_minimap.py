"""The minimap above the timeline: the share of the time that ranks communicated and waited."""

from __future__ import annotations

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.timeline.overview import Overview
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.figures.timeline_overlays import NS_PER_AXIS
from ringtune.dashboard.theme import PHASES, Scheme

MAP_PIXELS = 74


def minimap(found: Overview, window: Window, scheme: Scheme) -> go.Figure:
    """Draw the whole job with the window framed; dragging over it chooses another window."""
    figure = theme.blank(scheme, MAP_PIXELS)
    middles = (found.edges_ns[:-1] + found.edges_ns[1:]) / 2 / NS_PER_AXIS
    for stage, share in found.share.items():
        phase = PHASES[stage.label]
        words = [f"{phase.label}: {100 * one:.0f} % of the time" for one in share.tolist()]
        figure.add_trace(
            go.Scatter(
                x=middles, y=share, name=phase.label, mode="lines", fill="tozeroy", opacity=0.8, hovertext=words,
                line={"color": phase.color, "width": 1, "shape": "hvh"}, hovertemplate="%{hovertext}<extra></extra>",
            )
        )  # fmt: skip
    ends = [found.edges_ns[0] / NS_PER_AXIS, found.edges_ns[-1] / NS_PER_AXIS]
    low, high = (max(ends[0], min(ends[1], end / NS_PER_AXIS)) for end in (window.begin_ns, window.end_ns))
    shade = {"fillcolor": theme.ink(scheme).faint, "opacity": 0.28, "line": {"width": 0}}
    for x0, x1 in ((ends[0], low), (high, ends[1])):
        figure.add_shape(type="rect", xref="x", yref="paper", x0=x0, x1=x1, y0=0, y1=1, **shade)
    middle, least = (low + high) / 2, 0.0015 * (ends[1] - ends[0])
    frame = {"x0": min(low, middle - least), "x1": max(high, middle + least)}
    figure.add_shape(
        type="rect", xref="x", yref="paper", y0=0, y1=1, line={"color": theme.ink(scheme).text, "width": 1.5}, **frame
    )
    figure.update_xaxes(
        range=ends, fixedrange=True, showgrid=False, tickformat=",.12~g", ticksuffix=" ms", showticksuffix="first",
        tickangle=0, nticks=5,
    )  # fmt: skip
    figure.update_yaxes(range=[0, 1], fixedrange=True, visible=False)
    figure.update_layout(
        dragmode="select", selectdirection="h", hovermode="x", showlegend=False, selections=[],
        margin={"l": 124, "r": 12, "t": 2, "b": 20}, uirevision=f"{low}-{high}",
    )  # fmt: skip
    return figure
