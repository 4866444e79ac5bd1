"""The plane of both knobs: trials as points over the predicted surface of untried settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.posterior import Surface
from ringtune.dashboard.data.tuning import (
    TuningHistory,
    against_default,
)
from ringtune.dashboard.figures.tuning_trials import POINTS, _put, trial_words
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import size
from ringtune.timeline.runs.records import Trial

CYCLE_TICKS_MS = [mantissa * 10.0**power for power in range(-4, 5) for mantissa in (1, 2, 5)]


def plane(
    past: TuningHistory, scheme: Scheme = "light", height: int = 340, surface: Surface | None = None
) -> go.Figure:
    """Draw the trials on the plane of fusion buffer and cycle time, both logarithmic, coloured by step time.

    ``surface``: what the trials say about the settings between them.
    """
    figure = theme.blank(scheme, height)
    if past.with_restarts:
        return theme.say(figure, "Variables of a run were tried, not knobs:<br>see All settings")
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
    """Return the trials on `plane`, as a poll sends them; what lies between them stays as it was drawn."""
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
