"""Further figures of a tuning session: what it cost so far, which knob matters, every setting as a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.tuning import SOURCES, TuningHistory, placed
from ringtune.dashboard.figures.tuning import SOURCE_LOOK, trial_words
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import duration, percent, size, time_scale
from ringtune.timeline.records import Trial

KNOB_WORDS = {"fusion_bytes": "Fusion buffer", "cycle_time_ns": "Cycle time"}


def lost(past: TuningHistory, scheme: Scheme = "light", height: int = 300) -> go.Figure:
    """Draw the time lost by the search so far, trial by trial, against training with the default."""
    figure = theme.blank(scheme, height)
    factor, unit = time_scale(max((abs(ns) for _, ns in past.lost), default=1e6))
    if past.lost:
        figure.add_trace(
            go.Scatter(
                x=[trial for trial, _ in past.lost],
                y=[ns / factor for _, ns in past.lost],
                name="lost so far",
                mode="lines+markers",
                line={"color": theme.EXPOSED_COLOR, "width": 2, "shape": "hv"},
                marker={"size": 5},
                fill="tozeroy",
                fillcolor="rgba(213,94,0,0.12)",
                hovertext=[_lost_words(trial, ns) for trial, ns in past.lost],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    else:
        theme.say(figure, "The journal does not say what the search cost")
    figure.update_xaxes(title_text="Trial", tickformat="d", zeroline=False)
    figure.update_yaxes(title_text=f"Time lost so far ({unit})", rangemode="tozero")
    return figure


def _lost_words(trial: int, ns: int) -> str:
    return f"after trial {trial}: {duration(abs(ns))} {'lost' if ns >= 0 else 'won'}<br>against the default"


def importance(shares: Mapping[str, float] | None, scheme: Scheme = "light", height: int = 300) -> go.Figure:
    """Draw each knob's share of what settings change in step time."""
    figure = theme.blank(scheme, height)
    if not shares:
        return theme.say(figure, "Too few settings were tried to tell")
    names = sorted(shares, key=lambda name: shares[name])
    figure.add_trace(
        go.Bar(
            orientation="h",
            y=[KNOB_WORDS.get(name, name) for name in names],
            x=[100 * shares[name] for name in names],
            name="importance",
            marker={"color": theme.BLUE, "line": {"width": 0}},
            text=[percent(shares[name]) for name in names],
            textposition="auto",
            hovertemplate="%{y}: %{text} of the variance<extra></extra>",
            width=0.5,
        )
    )
    figure.update_xaxes(title_text="Share of the variance of step time (%)", range=[0, 100])
    figure.update_yaxes(showgrid=False)
    return figure


def parallel(past: TuningHistory, scheme: Scheme = "light", height: int = 340) -> go.Figure:
    """Draw every measured setting as a line over the knobs (logarithmic) and its step time.

    Lines of plotly's own: its parallel coordinates make code at run time, which the content policy forbids.
    """
    figure = theme.blank(scheme, height)
    shown = placed(past)
    if len(shown) < 2:
        return theme.say(figure, "Too few settings were tried")
    columns: tuple[list[float], ...] = (
        [math.log(trial.knobs["fusion_bytes"]) for trial, _ in shown],
        [math.log(trial.knobs["cycle_time_ns"]) for trial, _ in shown],
        [step.median for _, step in shown],
    )
    scaled = [_scaled(column) for column in columns]
    for (trial, _), places in zip(shown, zip(*scaled, strict=True), strict=True):
        figure.add_trace(_line(trial, places, kept=past.result is not None and trial.knobs == past.result.knobs))
    for source in dict.fromkeys(trial.source for trial, _ in shown):
        color = SOURCE_LOOK.get(source, (theme.GREY, ""))[0]
        line = {"color": color, "width": 2}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line=line, name=SOURCES.get(source, "other")))
    _axes(figure, columns, scheme)
    return figure


def _scaled(column: Sequence[float]) -> list[float]:
    low, high = min(column), max(column)
    return [(value - low) / (high - low) if high > low else 0.5 for value in column]


def _line(trial: Trial, places: Sequence[float], kept: bool) -> go.Scatter:
    color = SOURCE_LOOK.get(trial.source, (theme.GREY, ""))[0]
    return go.Scatter(
        x=[0, 1, 2],
        y=list(places),
        mode="lines+markers",
        line={"color": color, "width": 3 if kept else 1.4, "shape": "spline", "smoothing": 0.4},
        marker={"size": 5, "color": color},
        opacity=1.0 if kept or trial.source == "default" else 0.55,
        name=f"trial {trial.trial}",
        showlegend=False,
        hovertext=trial_words(trial),
        hovertemplate="%{hovertext}<extra></extra>",
    )


_AXES: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("Fusion buffer", lambda value: size(math.exp(value))),
    ("Cycle time", lambda value: duration(math.exp(value))),
    ("Step time", duration),
)
"""Heads, and how a place on the axis is written."""


def _axes(figure: go.Figure, columns: Sequence[Sequence[float]], scheme: Scheme) -> None:
    tint = theme.ink(scheme)
    font = {"size": 12, "color": tint.faint}
    for at, ((head, words), column) in enumerate(zip(_AXES, columns, strict=True)):
        figure.add_shape(type="line", x0=at, x1=at, y0=0, y1=1, line={"color": tint.faint, "width": 1})
        figure.add_annotation(x=at, y=1.1, text=head, showarrow=False, font=font)
        for place in (0.0, 0.5, 1.0):
            text = words(min(column) + place * (max(column) - min(column)))
            figure.add_annotation(x=at, y=place, text=text, showarrow=False, xanchor="left", xshift=8, font=font)
    figure.update_xaxes(visible=False, range=[-0.15, 2.35])
    figure.update_yaxes(visible=False, range=[-0.08, 1.18])
