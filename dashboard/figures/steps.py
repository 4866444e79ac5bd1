"""Figures of the steps: their time along the run, and where it goes on each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.step_totals import Breakdown
from ringtune.dashboard.data.steps import StepLine
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import duration, time_scale

BAR_LIMIT_RANKS = 64


def step_times(lines: Sequence[StepLine], scheme: Scheme = "light", height: int = 300) -> go.Figure:
    """Draw step time against step number; the shaded span is least to most where a point holds several steps."""
    figure = theme.blank(scheme, height)
    factor, unit = scale(lines)
    for line in lines:
        color = theme.rank_color(line.rank)
        if (line.high_ns > line.low_ns).any() and len(lines) <= 4:
            figure.add_trace(_band(line, factor, color))
        figure.add_trace(
            go.Scatter(
                x=line.step,
                y=line.median_ns / factor,
                name=line.label,
                mode="lines" if len(line.step) > 1 else "markers",
                line={"color": color, "width": 1.6, "dash": theme.rank_dash(line.rank)},
                hovertemplate=f"step %{{x:,.0f}} · {line.label}: %{{y:.4~g}} {unit}<extra></extra>",
            )
        )
    figure.update_layout(hovermode="closest", showlegend=len(lines) > 1)
    figure.update_xaxes(title_text="Step", tickformat=",~d")
    figure.update_yaxes(title_text=f"Step time ({unit})", rangemode="tozero")
    return figure


def scale(lines: Sequence[StepLine]) -> tuple[float, str]:
    """Return the unit of the axis in nanoseconds, and its name."""
    return time_scale(max((float(line.median_ns.max()) for line in lines), default=1.0))


def longer(lines: Sequence[StepLine], factor: float) -> list[dict[str, Any]]:
    """Return the values to append to the lines of `step_times`, in the unit of its axis, by their names."""
    return [
        {"name": line.label, "columns": {"x": line.step.tolist(), "y": (line.median_ns / factor).tolist()}}
        for line in lines
    ]


def _band(line: StepLine, factor: float, color: str) -> go.Scatter:
    moments, low, high = (column.tolist() for column in (line.step, line.low_ns / factor, line.high_ns / factor))
    return theme.band(moments, low, high, color).update(name=f"{line.label} span")


@dataclass(frozen=True)
class Bars:
    """Bars of the mean step by rank: every kind's name, colour and values; ``whole``: they add up to the step."""

    parts: Sequence[Breakdown]
    columns: Sequence[tuple[str, str, list[float]]]
    whole: bool

    def unit(self) -> tuple[float, str]:
        """The unit of the axis in nanoseconds, and its name."""
        top = max((value for _, _, values in self.columns for value in values), default=1.0)
        return time_scale(max(top, max((part.wall_ns for part in self.parts), default=0.0) if self.whole else 0.0))


def breakdown_bars(parts: Sequence[Breakdown]) -> Bars:
    """Return each rank's mean step: computation, overlapped and exposed communication, waiting for a late rank."""
    parts = parts[:BAR_LIMIT_RANKS]
    columns = (
        ("Compute alone", theme.COMPUTE_COLOR, [part.alone_ns for part in parts]),
        ("Overlapped", theme.OVERLAPPED_COLOR, [part.overlapped_ns for part in parts]),
        ("Exposed", theme.EXPOSED_COLOR, [part.exposed_ns for part in parts]),
        ("Waiting", theme.LATE_COLOR, [part.waiting_ns for part in parts]),
    )
    return Bars(parts, columns, whole=True)


def phases_bars(parts: Sequence[Breakdown]) -> Bars:
    """Return the mean time of each phase of communication in a step, rank by rank."""
    parts = parts[:BAR_LIMIT_RANKS]
    columns = (
        ("Negotiate, summed", theme.PHASES["negotiate"].color, [part.negotiate_ns for part in parts]),
        ("Copy in and out", theme.PHASES["copy_in"].color, [part.copy_ns for part in parts]),
        ("Communicate", theme.PHASES["communicate"].color, [part.communicate_ns for part in parts]),
        ("Wait", theme.PHASES["wait"].color, [part.blocked_ns for part in parts]),
    )
    return Bars(parts, columns, whole=False)


def breakdown(parts: Sequence[Breakdown], scheme: Scheme = "light") -> go.Figure:
    """Draw each rank's mean step as computation, overlapped and exposed communication, and waiting for a late rank."""
    return _bars(breakdown_bars(parts), scheme)


def phases(parts: Sequence[Breakdown], scheme: Scheme = "light") -> go.Figure:
    """Draw the mean time of each phase of communication in a step, rank by rank."""
    return _bars(phases_bars(parts), scheme).update_layout(barmode="group")


def bars_now(found: Bars, unit_ns: float) -> list[dict[str, Any]]:
    """Return how long bars are, as a poll sends it: the columns of each trace, by its name."""
    return [
        {
            "name": label,
            "columns": {
                "x": {"at": 0, "values": [value / unit_ns for value in values]},
                "hovertext": {
                    "at": 0,
                    "values": [
                        _hover(label, value, part, found.whole) for value, part in zip(values, found.parts, strict=True)
                    ],
                },
            },
        }
        for label, _, values in found.columns
    ]


def _bars(found: Bars, scheme: Scheme) -> go.Figure:
    rows = len(found.parts)
    figure = theme.blank(scheme, max(210, 100 + 46 * rows if rows <= 8 else 468 + 12 * (rows - 8)))
    factor, unit = found.unit()
    ranks, colors = [f"rank {part.rank}" for part in found.parts], [color for _, color, _ in found.columns]
    for one, color in zip(bars_now(found, factor), colors, strict=True):
        figure.add_trace(
            go.Bar(
                name=one["name"],
                orientation="h",
                y=ranks,
                x=one["columns"]["x"]["values"],
                marker={"color": color, "line": {"width": 0}},
                hovertext=one["columns"]["hovertext"]["values"],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.35, bargroupgap=0.08, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text=f"Mean time a step ({unit})", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def _hover(label: str, value: float, part: Breakdown, shares: bool) -> str:
    share = f" ({100 * value / part.wall_ns:.1f} % of the step)" if shares and part.wall_ns > 0 else ""
    known = duration(value) if math.isfinite(value) else "unknown"
    return f"rank {part.rank} · {label}: {known}{share}<br>mean of {part.steps:,} steps"
