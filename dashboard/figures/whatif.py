"""Figures of what if: efficiency against ranks with its band, and where a step would go."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.whatif import Outlook
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import count, duration, percent, time_scale
from ringtune.tuner.model.questions import Answer

NOW_COLOR = theme.BLUE
RAN_COLOR = theme.GREY
PARTS = (
    ("Computing", theme.COMPUTE_COLOR),
    ("Late", theme.OCHRE),
    ("Slowed", theme.SKY),
    ("Exposed", theme.EXPOSED_COLOR),
)


def efficiency(outlook: Outlook, scheme: Scheme = "light", height: int = 330) -> go.Figure:
    """Draw efficiency against ranks: asked for, as it ran, and as it was measured."""
    figure = theme.blank(scheme, height)
    _line(figure, outlook.as_ran_curve, "as it ran", (RAN_COLOR, "dot"))
    _line(figure, outlook.curve, "with these settings", (NOW_COLOR, "solid"))
    now = outlook.answer
    figure.add_trace(
        go.Scatter(
            x=[now.ranks],
            y=[100 * now.efficiency.value],
            name="your question",
            mode="markers",
            marker={"size": 13, "color": NOW_COLOR, "line": {"width": 2, "color": theme.ink(scheme).surface}},
            hovertemplate=_hover(now) + "<extra></extra>",
        )
    )
    if outlook.measured_efficiency is not None:
        ranks = outlook.as_ran.ranks
        figure.add_trace(
            go.Scatter(
                x=[ranks],
                y=[100 * outlook.measured_efficiency],
                name="measured",
                mode="markers",
                marker={"size": 12, "symbol": "diamond", "color": theme.BEST_COLOR},
                hovertemplate=f"measured · {count(ranks)} ranks: {percent(outlook.measured_efficiency)}<extra></extra>",
            )
        )
    ticks = [answer.ranks for answer in outlook.curve if answer.ranks & (answer.ranks - 1) == 0]
    figure.update_xaxes(title_text="Ranks", type="log", tickvals=ticks, ticktext=[count(n) for n in ticks])
    figure.update_yaxes(title_text="Scaling efficiency (%)", range=[0, 104])
    figure.update_layout(showlegend=True, uirevision="what-if")
    return figure


def _line(figure: go.Figure, curve: Sequence[Answer], name: str, look: tuple[str, str]) -> None:
    color, dash = look
    ranks = [answer.ranks for answer in curve]
    low, high = ([100 * getattr(answer.efficiency, end) for answer in curve] for end in ("low", "high"))
    figure.add_trace(theme.band(ranks, low, high, color).update(name=f"{name}, band"))
    figure.add_trace(
        go.Scatter(
            x=ranks,
            y=[100 * answer.efficiency.value for answer in curve],
            name=name,
            mode="lines",
            line={"color": color, "width": 2, "dash": dash},
            hovertext=[_hover(answer) for answer in curve],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    )


def _hover(answer: Answer) -> str:
    known = answer.efficiency
    interval = f"{percent(known.value)} ({percent(known.low)} to {percent(known.high)})"
    where = f"{count(answer.ranks)} ranks on {count(answer.hosts)} host{'s' if answer.hosts > 1 else ''}"
    return f"{answer.change.label} · {where}<br>{interval}, {duration(answer.step_ns.value)} a step"


def parts(answer: Answer) -> tuple[float, float, float, float]:
    """Return where a step goes, in nanoseconds, in the order of `PARTS`; they add up to its length."""
    step = answer.step
    return step.compute_ns, step.late_ns, step.contention_ns, step.waiting_ns


def step(outlook: Outlook, scheme: Scheme = "light", height: int = 230) -> go.Figure:
    """Draw where a step goes, asked for and as it ran, beside what was measured.

    *Late* is what the slowest rank computes longer than the others, *slowed* by how much communication makes computing
    longer, *exposed* what is left of communication after it.
    """
    rows = (("with these settings", outlook.answer), ("as it ran", outlook.as_ran))
    longest = max(outlook.measured_ns or 0.0, *(answer.step_ns.value for _, answer in rows))
    factor, unit = time_scale(longest)
    figure = theme.blank(scheme, height)
    for place, (label, color) in enumerate(PARTS):
        values = [parts(answer)[place] for _, answer in rows]
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=label,
                y=[name for name, _ in rows],
                x=[value / factor for value in values],
                marker={"color": color, "line": {"width": 0}},
                hovertext=[f"{name} · {label}: {duration(v)}" for (name, _), v in zip(rows, values, strict=True)],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    if outlook.measured_ns is not None:
        figure.add_trace(
            go.Scatter(
                x=[outlook.measured_ns / factor],
                y=["as it ran"],
                name="measured",
                mode="markers",
                marker={"size": 12, "symbol": "diamond", "color": theme.BEST_COLOR},
                hovertemplate=f"measured: {duration(outlook.measured_ns)}<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.4, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text=f"Time of a step ({unit})", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure
