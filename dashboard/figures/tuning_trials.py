"""Figures of trials in their order: the step time of each, and the time the search cost so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.tuning import (
    SOURCES,
    TuningHistory,
    best_confirmed,
    default_step_ns,
)
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import duration, markup, time_scale
from ringtune.timeline.runs.records import Trial

SOURCE_LOOK = {
    "default": (theme.DEFAULT_COLOR, "square"),
    "stored": (theme.PURPLE, "diamond"),
    "near": (theme.PURPLE, "diamond-open"),
    "model": (theme.SKY, "triangle-down"),
    "start-point": (theme.OCHRE, "triangle-up"),
    "sampler": (theme.BLUE, "circle"),
    "switch": (theme.OLIVE, "square"),
    "confirm": (theme.GREEN, "star"),
}


BEST, LEVEL, POINTS = "best confirmed", "default's level", "trials"
"""Names of traces."""


def trials_unit(past: TuningHistory) -> tuple[float, str]:
    """Return the unit of `trials`' axis in nanoseconds, and its name."""
    return time_scale(max((trial.step_ns.median for trial in past.trials if trial.step_ns), default=1e6))


def trials(past: TuningHistory, scheme: Scheme = "light", height: int = 340) -> go.Figure:
    """Draw step time with its interval trial by trial, the default's level, and the best confirmed so far."""
    figure = theme.blank(scheme, height)
    factor, unit = trials_unit(past)
    _default_level(figure, past, factor)
    for source, label in SOURCES.items():
        if chosen := _measured(past, source):
            figure.add_trace(_dots(past, chosen, label, factor))
    numbers, best = best_confirmed(past)
    if numbers:
        figure.add_trace(
            go.Scatter(
                x=numbers,
                y=[value / factor for value in best],
                name=BEST,
                mode="lines",
                line={"color": theme.BEST_COLOR, "width": 2.4, "shape": "hv"},
                hovertemplate=f"best confirmed after trial %{{x}}: %{{y:.4~g}} {unit}<extra></extra>",
            )
        )
    figure.update_xaxes(title_text="Trial", zeroline=False)
    figure.update_yaxes(title_text=f"Step time ({unit})")
    return figure


def trials_now(past: TuningHistory, unit_ns: float) -> list[dict[str, Any]]:
    """Return the points of `trials`, as a poll sends them: the columns of each trace, by its name."""
    found = []
    for source, label in SOURCES.items():
        if chosen := _measured(past, source):
            columns = _dot_columns(past, chosen, unit_ns)
            found.append({"name": label, "columns": {name: _put(values) for name, values in columns.items()}})
    numbers, best = best_confirmed(past)
    if numbers:
        found.append({"name": BEST, "columns": {"x": _put(numbers), "y": _put([value / unit_ns for value in best])}})
    if default_step_ns(past) is not None:
        found.append({"name": LEVEL, "columns": {"x": _put(_ends(past))}})
    return found


def _put(values: Sequence[Any]) -> dict[str, Any]:
    return {"at": 0, "values": list(values)}


def _measured(past: TuningHistory, source: str) -> list[Trial]:
    return [trial for trial in past.trials if trial.step_ns is not None and trial.source == source]


def _ends(past: TuningHistory) -> list[float]:
    numbers = [trial.trial for trial in past.trials]
    return [min(numbers) - 0.5, max(numbers) + 0.5]


def _default_level(figure: go.Figure, past: TuningHistory, factor: float) -> None:
    level = default_step_ns(past)
    if level is None:
        return
    figure.add_hrect(
        y0=level.low / factor, y1=level.high / factor, fillcolor=theme.DEFAULT_COLOR, opacity=0.14, line_width=0
    )
    figure.add_trace(
        go.Scatter(
            x=_ends(past),
            y=[level.median / factor] * 2,
            name=LEVEL,
            showlegend=False,
            mode="lines",
            line={"color": theme.DEFAULT_COLOR, "width": 1.6, "dash": "dash"},
            hovertemplate=f"default setting: {duration(level.median)}<extra></extra>",
        )
    )


def _dots(past: TuningHistory, chosen: Sequence[Trial], label: str, factor: float) -> go.Scatter:
    color, symbol = SOURCE_LOOK[chosen[0].source]
    columns = _dot_columns(past, chosen, factor)
    reach = {"array": columns["error_y.array"], "arrayminus": columns["error_y.arrayminus"]}
    return go.Scatter(
        x=columns["x"],
        y=columns["y"],
        error_y={"type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": color, **reach},
        name=label,
        mode="markers",
        marker={
            "color": color,
            "size": 11 if symbol == "star" else 8,
            "symbol": columns["marker.symbol"],
            "line": {"width": 1.4, "color": color},
        },
        hovertext=columns["hovertext"],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _dot_columns(past: TuningHistory, chosen: Sequence[Trial], factor: float) -> dict[str, list[Any]]:
    symbol = SOURCE_LOOK[chosen[0].source][1]
    steps = [trial.step_ns for trial in chosen if trial.step_ns is not None]
    return {
        "x": [trial.trial for trial in chosen],
        "y": [step.median / factor for step in steps],
        "error_y.array": [max(0.0, step.high - step.median) / factor for step in steps],
        "error_y.arrayminus": [max(0.0, step.median - step.low) / factor for step in steps],
        "marker.symbol": [symbol + ("-open" if trial.state == "stopped-early" else "") for trial in chosen],
        "hovertext": [trial_words(past, trial) for trial in chosen],
    }


def trial_words(past: TuningHistory, trial: Trial) -> str:
    """Return all facts of a trial, for plotly."""
    step = trial.step_ns
    time = f"{duration(step.median)} ({duration(step.low)} to {duration(step.high)})" if step else "not measured"
    early = ", stopped early" if trial.state == "stopped-early" else ""
    source = markup(SOURCES.get(trial.source, trial.source))
    return (
        f"trial {trial.trial}: {source}{early}<br>{markup(past.words(trial), 400)}<br>"
        f"step time {time}<br>{trial.steps:,} steps"
        + ("" if past.with_restarts else f", knobs version {trial.knobs_version}")
    )


LOST = "lost so far"


def lost(past: TuningHistory, scheme: Scheme = "light", height: int = 300) -> go.Figure:
    """Draw the time lost by the search so far, trial by trial, against training with the default."""
    figure = theme.blank(scheme, height)
    factor, unit = lost_unit(past)
    if past.lost:
        columns = _lost_columns(past, factor)
        figure.add_trace(
            go.Scatter(
                x=columns["x"],
                y=columns["y"],
                name=LOST,
                mode="lines+markers",
                line={"color": theme.EXPOSED_COLOR, "width": 2, "shape": "hv"},
                marker={"size": 5},
                fill="tozeroy",
                fillcolor="rgba(213,94,0,0.12)",
                hovertext=columns["hovertext"],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    else:
        theme.say(figure, "The journal does not say what the search cost")
    figure.update_xaxes(title_text="Trial", zeroline=False)
    figure.update_yaxes(title_text=f"Time lost so far ({unit})", rangemode="tozero")
    return figure


def lost_unit(past: TuningHistory) -> tuple[float, str]:
    """Return the unit of `lost`'s axis in nanoseconds, and its name."""
    return time_scale(max((abs(ns) for _, ns in past.lost), default=1e6))


def lost_now(past: TuningHistory, unit_ns: float) -> list[dict[str, Any]]:
    """Return the line of `lost`, as a poll sends it."""
    columns = _lost_columns(past, unit_ns) if past.lost else {}
    found = {name: {"at": 0, "values": values} for name, values in columns.items()}
    return [{"name": LOST, "columns": found}] if found else []


def _lost_columns(past: TuningHistory, unit_ns: float) -> dict[str, list[Any]]:
    return {
        "x": [trial for trial, _ in past.lost],
        "y": [ns / unit_ns for _, ns in past.lost],
        "hovertext": [_lost_words(trial, ns) for trial, ns in past.lost],
    }


def _lost_words(trial: int, ns: int) -> str:
    return f"after trial {trial}: {duration(abs(ns))} {'lost' if ns >= 0 else 'won'}<br>against the default"
