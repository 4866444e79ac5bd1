"""Figures of scaling: throughput and efficiency against the number of ranks, beside the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.scaling import ScalingSeries
from ringtune.dashboard.data.scaling_runs import Factors
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import markup, number, percent
from ringtune.timeline.runs.records import Estimate
from ringtune.timeline.units import several

FACTORS = (
    ("computation", "More computing", theme.PURPLE),
    ("load_balance", "Uneven load", theme.OCHRE),
    ("serialisation", "Waiting for others", theme.VERMILLION),
    ("transfer", "Transfer", theme.BLUE),
)
"""Attribute of `Factors`, what is lost by it, its colour; in the order in which they are taken off."""

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
                    hovertemplate=f"{markup(one.label, 60)}<br>%{{x}} ranks, ideal: %{{y:,.4~g}} {markup(one.unit)}"
                    "<extra></extra>",
                )
            )
        _predicted(figure, one, position, [point.rate for point in one.predicted], 1.0)
        figure.add_trace(_measured(one, position, [point.rate for point in one.points], 1.0))
    units = sorted({one.unit for one in series})
    figure.update_yaxes(title_text=f"Throughput ({markup(' or '.join(units))})", rangemode="tozero")
    if any(one.predicted for one in series):
        # On linear axes the measured points would be a speck in the corner of the prediction.
        figure.update_yaxes(type="log", rangemode="normal", dtick=1)
    return _ranks_axis(figure, series)


def efficiency(series: Sequence[ScalingSeries], scheme: Scheme = "light", height: int = 380) -> go.Figure:
    """Draw efficiency in per cent against ranks, with intervals; 100 % is perfect scaling."""
    figure = theme.blank(scheme, height)
    for position, one in enumerate(series):
        _predicted(figure, one, position, [p.efficiency for p in one.predicted if p.efficiency is not None], 100.0)
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


def _predicted(figure: go.Figure, one: ScalingSeries, position: int, values: Sequence[Estimate], factor: float) -> None:
    """Draw what the cost model says: a dashed line in its band."""
    if not values:
        return
    ranks, color = [point.ranks for point in one.predicted], theme.rank_color(position)
    low, high = ([factor * getattr(value, end) for value in values] for end in ("low", "high"))
    figure.add_trace(theme.band(ranks, low, high, color).update(legendgroup="predicted"))
    figure.add_trace(
        go.Scatter(
            x=ranks,
            y=[factor * value.median for value in values],
            name="predicted",
            mode="lines",
            line={"color": color, "width": 1.8, "dash": "dash"},
            legendgroup="predicted",
            showlegend=not any(trace.name == "predicted" for trace in figure.data),
            hovertext=[f"predicted · {_hover(one, n, value, factor)}" for n, value in zip(ranks, values, strict=True)],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    )


def factors(found: Sequence[Factors], scheme: Scheme = "light", height: int = 320) -> go.Figure:
    """Draw where efficiency went: what is left, and on top of it what each factor took, down from 100 %."""
    figure = theme.blank(scheme, height)
    left = [1.0] * len(found)
    bars = []
    for name, label, color in FACTORS:
        values = [getattr(one, name) for one in found]
        after = [rest * (1.0 if value is None else min(value, 1.0)) for rest, value in zip(left, values, strict=True)]
        lost = [rest - now for rest, now in zip(left, after, strict=True)]
        bars.append((label, color, lost, [f"{label}: {percent(value)}" for value in values]))
        left = after
    kept = [f"Efficiency: {percent(one.efficiency)}, the product" for one in found]
    for label, color, shares, words in [("Efficiency", theme.BEST_COLOR, left, kept), *reversed(bars)]:
        figure.add_trace(
            go.Bar(
                name=label,
                width=min(0.5, 0.12 * len(found)),
                x=[markup(one.label, 40) for one in found],
                y=[100 * share for share in shares],
                marker={"color": color, "line": {"width": 0}},
                hovertext=[f"{markup(one.label, 40)}<br>{word}" for one, word in zip(found, words, strict=True)],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.45, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text="Run · ranks", type="category")
    figure.update_yaxes(title_text="Share of ideal (%)", range=[0, 104])
    return figure


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
    return f"{markup(one.label, 60)}<br>{several(ranks, 'rank')}: {text}"


def _ranks_axis(figure: go.Figure, series: Sequence[ScalingSeries]) -> go.Figure:
    ranks = sorted({point.ranks for one in series for point in (*one.points, *one.predicted)})
    figure.update_layout(showlegend=True)
    # Ticks where something was measured; a doubling takes the same room everywhere once there are many.
    wide = bool(ranks) and ranks[-1] >= 8
    figure.update_xaxes(title_text="Ranks", tickvals=ranks, type="log" if wide else "linear", tickformat=",d")
    return figure
