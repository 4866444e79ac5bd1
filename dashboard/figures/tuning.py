"""Figures of a tuning session: trials in order, and the plane of both knobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.posterior import Surface
from ringtune.dashboard.data.tuning import (
    SOURCES,
    TuningHistory,
    against_default,
    best_confirmed,
    default_step_ns,
)
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import duration, markup, size, time_scale
from ringtune.timeline.records import Trial

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
CYCLE_TICKS_MS = [mantissa * 10.0**power for power in range(-4, 5) for mantissa in (1, 2, 5)]


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
    figure.update_xaxes(title_text="Trial", tickformat="d", zeroline=False)
    figure.update_yaxes(title_text=f"Step time ({unit})")
    return figure


def trials_now(past: TuningHistory, unit_ns: float) -> list[dict[str, Any]]:
    """Return the points of `trials`, as beats send them: the columns of each trace, by its name."""
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
        f"step time {time}<br>{trial.steps:,} steps" + ("" if past.with_restarts else f", knobs version {trial.epoch}")
    )


def plane(
    past: TuningHistory, scheme: Scheme = "light", height: int = 340, surface: Surface | None = None
) -> go.Figure:
    """Draw the trials on the plane of fusion buffer and cycle time, both logarithmic, coloured by step time.

    ``surface``: what the trials say about the settings between them.
    """
    figure = theme.blank(scheme, height)
    if past.with_restarts:
        return theme.say(figure, "Variables of a run were tried, not knobs: see All settings")
    shown = _on_plane(past)
    columns = _plane_columns(past)
    values = columns["marker.color"]
    colors = {**_colors(values, surface), "colorbar": _bar(scheme)}
    if surface is not None:
        figure.add_trace(_surface(surface, colors))
    if shown:
        figure.add_trace(
            go.Scatter(
                x=columns["x"],
                y=columns["y"],
                mode="markers",
                name=POINTS,
                showlegend=False,
                marker={
                    "color": values,
                    "colorscale": "Cividis",
                    "reversescale": True,
                    "size": 12 if surface is None else 10,
                    "line": {"width": 1.2, "color": "#ffffff"},
                    **(colors if surface is None else {name: colors[name] for name in ("cmin", "cmax")}),
                },
                hovertext=columns["hovertext"],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    _mark(figure, past.default, ("default", "square-open", theme.ink(scheme).faint))
    if past.result is not None:
        _mark(figure, past.result.knobs, ("kept", "circle-open", theme.VERMILLION))
    tried = [_knobs(trial)[0] for trial in shown] + [past.default.get("fusion_bytes", 0)]
    ticks = _byte_ticks([value for value in tried if value > 0])
    figure.update_xaxes(
        title_text="Fusion buffer (bytes)", type="log", tickvals=ticks, ticktext=[size(t) for t in ticks]
    )
    figure.update_yaxes(title_text="Cycle time (ms)", type="log", tickvals=CYCLE_TICKS_MS)
    return figure


def plane_now(past: TuningHistory) -> list[dict[str, Any]]:
    """Return the trials on `plane`, as beats send them; what lies between them stays as it was drawn."""
    columns = {} if past.with_restarts or not _on_plane(past) else _plane_columns(past)
    return [{"name": POINTS, "columns": {name: _put(values) for name, values in columns.items()}}] if columns else []


def _on_plane(past: TuningHistory) -> list[Trial]:
    return [trial for trial in past.trials if trial.step_ns and min(_knobs(trial)) > 0]


def _plane_columns(past: TuningHistory) -> dict[str, list[Any]]:
    shown = _on_plane(past)
    return {
        "x": [_knobs(trial)[0] for trial in shown],
        "y": [_knobs(trial)[1] / 1e6 for trial in shown],
        "marker.color": [100 * (against_default(past, trial) or math.nan) for trial in shown],
        "hovertext": [trial_words(past, trial) for trial in shown],
    }


def _colors(values: Sequence[float], surface: Surface | None) -> dict[str, float]:
    """One range of colours for trials and surface."""
    every = [*values, *((100 * surface.share).ravel().tolist() if surface is not None else [])]
    known = [value for value in every if math.isfinite(value)]
    return {"cmin": min(known), "cmax": max(known)} if known else {"cmin": 0.0, "cmax": 1.0}


def _bar(scheme: Scheme) -> dict[str, object]:
    return {
        "title": {"text": "Step time<br>(% of default)", "font": {"size": 12}},
        "tickfont": {"size": 12, "color": theme.ink(scheme).faint},
        "thickness": 12,
        "outlinewidth": 0,
    }


def _surface(surface: Surface, colors: Mapping[str, object]) -> go.Contour:
    return go.Contour(
        x=surface.fusion_bytes,
        y=surface.cycle_ns / 1e6,
        z=100 * surface.share,
        customdata=100 * surface.deviation,
        name="expected",
        colorscale="Cividis",
        reversescale=True,
        zmin=colors["cmin"],
        zmax=colors["cmax"],
        colorbar=colors["colorbar"],
        contours={"coloring": "heatmap"},
        line={"width": 0.6, "color": "rgba(255,255,255,0.5)"},
        opacity=0.85,
        hovertemplate="expected: %{z:.1f} ± %{customdata:.1f} % of the default's step time<extra></extra>",
    )


def _knobs(trial: Trial) -> tuple[int, int]:
    return trial.knobs.get("fusion_bytes", 0), trial.knobs.get("cycle_time_ns", 0)


def _mark(figure: go.Figure, knobs: Mapping[str, int], look: tuple[str, str, str]) -> None:
    name, symbol, color = look
    if min(knobs.get("fusion_bytes", 0), knobs.get("cycle_time_ns", 0)) <= 0:
        return
    figure.add_trace(
        go.Scatter(
            x=[knobs["fusion_bytes"]],
            y=[knobs["cycle_time_ns"] / 1e6],
            name=name,
            mode="markers",
            marker={"symbol": symbol, "size": 20, "color": color, "line": {"width": 2.4, "color": color}},
            hoverinfo="skip",
        )
    )


def _byte_ticks(values: Sequence[int]) -> list[int]:
    """Return powers of four that cover the values."""
    if not values:
        return []
    low, high = min(values).bit_length() - 1, max(values).bit_length()
    step = max(1, (high - low) // 6)
    return [2**power for power in range(low, high + 1, step)]
