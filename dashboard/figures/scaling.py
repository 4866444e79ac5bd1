"""Figures of scaling: throughput and efficiency against the number of ranks, beside the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.scaling import ScalingSeries
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import markup, number, percent
from ringtune.timeline.records import Estimate

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")


def rate(series: Sequence[ScalingSeries], scheme: Scheme = "light", height: int = 380) -> go.Figure:
    """Draw the rate of the whole job against ranks, with intervals; the dotted lines are perfect scaling."""
    figure = theme.blank(scheme, height)
    for position, one in enumerate(series):
        ranks, ideal = one.ideal()
        if len(ranks) > 1:
            figure.add_trace(
                go.Scatter(
                    x=ranks,
                    y=ideal,
                    name="ideal",
                    mode="lines",
                    line={"color": theme.rank_color(position), "width": 1.2, "dash": "dot"},
                    legendgroup="ideal",
                    showlegend=position == 0,
                    hovertemplate="%{x} ranks · ideal: %{y:,.4~g} " + markup(one.unit) + "<extra></extra>",
                )
            )
        figure.add_trace(_measured(one, position, [point.rate for point in one.points], 1.0))
    units = sorted({one.unit for one in series})
    figure.update_yaxes(title_text=f"Throughput ({markup(' or '.join(units))})", rangemode="tozero")
    return _ranks_axis(figure, series)


def efficiency(series: Sequence[ScalingSeries], scheme: Scheme = "light", height: int = 380) -> go.Figure:
    """Draw efficiency in per cent against ranks, with intervals; 100 % is perfect scaling."""
    figure = theme.blank(scheme, height)
    for position, one in enumerate(series):
        known = [(point.ranks, point.efficiency) for point in one.points if point.efficiency is not None]
        if known:
            figure.add_trace(_measured(one, position, [value for _, value in known], 100.0, [r for r, _ in known]))
    figure.add_hline(y=100, line={"color": theme.ink(scheme).faint, "width": 1.2, "dash": "dot"})
    figure.update_yaxes(title_text="Scaling efficiency (%)", rangemode="tozero")
    return _ranks_axis(figure, series)


def _measured(
    one: ScalingSeries, position: int, values: Sequence[Estimate], factor: float, ranks: Sequence[int] | None = None
) -> go.Scatter:
    shown = ranks if ranks is not None else [point.ranks for point in one.points]
    return go.Scatter(
        x=list(shown),
        y=[factor * value.median for value in values],
        error_y=_error(values, factor, position),
        name=markup(one.label, 60),
        mode="lines+markers",
        line={"color": theme.rank_color(position), "width": 2},
        marker={"size": 9, "symbol": SYMBOLS[position % len(SYMBOLS)]},
        hovertext=[_hover(one, rank, value, factor) for rank, value in zip(shown, values, strict=True)],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _error(values: Sequence[Estimate], factor: float, position: int) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [factor * max(0.0, value.high - value.median) for value in values],
        "arrayminus": [factor * max(0.0, value.median - value.low) for value in values],
        "thickness": 1.4,
        "width": 5,
        "color": theme.rank_color(position),
    }


def _hover(one: ScalingSeries, ranks: int, value: Estimate, factor: float) -> str:
    if factor == 1.0:
        text = f"{number(value.median)} {markup(one.unit)} ({number(value.low)} to {number(value.high)})"
    else:
        text = f"{percent(value.median)} ({percent(value.low)} to {percent(value.high)})"
    return f"{markup(one.label, 60)}<br>{ranks} ranks: {text}"


def _ranks_axis(figure: go.Figure, series: Sequence[ScalingSeries]) -> go.Figure:
    ranks = sorted({point.ranks for one in series for point in one.points})
    figure.update_layout(showlegend=True)
    # Ticks where something was measured; a doubling takes the same room everywhere once there are many.
    wide = bool(ranks) and ranks[-1] >= 8
    figure.update_xaxes(title_text="Ranks", tickvals=ranks, type="log" if wide else "linear", tickformat=",d")
    return figure
