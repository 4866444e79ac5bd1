"""Figures of settings: which knob matters, and every setting as a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.tuning import SOURCES, TuningHistory, placed
from ringtune.dashboard.figures.tuning_trials import SOURCE_LOOK, trial_words
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import duration, markup, percent, size
from ringtune.errors import InvalidArgument
from ringtune.knobs import BY_NAME, DEFAULTS
from ringtune.timeline.runs.records import Trial
from ringtune.tuner import messages

_HEAD_ROWS = 3
AS_IT_IS = "as it is"
KNOB_WORDS = {"fusion_bytes": "Fusion buffer", "cycle_time_ns": "Cycle time"}


def importance(shares: Mapping[str, float] | None, scheme: Scheme = "light", height: int = 300) -> go.Figure:
    """Draw each knob's share of what settings change in step time."""
    figure = theme.blank(scheme, height)
    if not shares:
        return theme.say(figure, "Too few settings were tried to compute this")
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
    figure.update_xaxes(title_text="Share of the variance (%)", range=[0, 100])
    figure.update_yaxes(showgrid=False)
    return figure


@dataclass(frozen=True)
class _Axis:
    """An axis of the parallel coordinates: its head, the trials' places from 0 to 1, and texts at places."""

    head: str
    places: list[float]
    ticks: list[tuple[float, str]]


def parallel(past: TuningHistory, scheme: Scheme = "light", height: int = 340) -> go.Figure:
    """Draw every measured setting as a line over the knobs (logarithmic), or the variables, and its step time.

    Lines of plotly's own: its parallel coordinates make code at run time, which the content policy forbids.
    """
    figure = theme.blank(scheme, height)
    measured = [(trial, trial.step_ns) for trial in past.trials if trial.step_ns]
    shown = measured if past.with_restarts else placed(past)
    if len(shown) < 2:
        return theme.say(figure, "Too few settings were tried")
    trials = [trial for trial, _ in shown]
    axes = _variables(past, trials) if past.with_restarts else [*_knobs(trials), *_switches(trials)]
    axes.append(_even("Step time", [step.median for _, step in shown], duration))
    for trial, places in zip(trials, zip(*(axis.places for axis in axes), strict=True), strict=True):
        figure.add_trace(_line(past, trial, places))
    for source in dict.fromkeys(trial.source for trial in trials):
        color = SOURCE_LOOK.get(source, (theme.GREY, ""))[0]
        line = {"color": color, "width": 2}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line=line, name=SOURCES.get(source, "other")))
    _axes(figure, axes, scheme)
    return figure


def _knobs(trials: Sequence[Trial]) -> list[_Axis]:
    logs = {name: [math.log(trial.knobs[name]) for trial in trials] for name in KNOB_WORDS}
    return [
        _even(KNOB_WORDS["fusion_bytes"], logs["fusion_bytes"], lambda value: size(math.exp(value))),
        _even(KNOB_WORDS["cycle_time_ns"], logs["cycle_time_ns"], lambda value: duration(math.exp(value))),
    ]


def _switches(trials: Sequence[Trial]) -> list[_Axis]:
    """Return an axis for each other knob that the trials differ in."""
    axes = []
    for name, row in BY_NAME.items():
        values = [trial.knobs.get(name, row.default) for trial in trials]
        if name not in KNOB_WORDS and len(set(values)) > 1:
            axes.append(_named(row.label.capitalize(), [_value(name, value) for value in values]))
    return axes


def _value(name: str, value: int) -> str:
    try:
        return messages.knob_words(replace(DEFAULTS, **{name: value}), name)[1]
    except (InvalidArgument, KeyError, IndexError):
        return str(value)


def _named(head: str, values: Sequence[str], first: str | None = None) -> _Axis:
    """Return an axis with a place for each value; `first`: the one at its foot, whether it was tried or not."""
    every = dict.fromkeys(values if first is None else [first, *values])
    known = sorted(every, key=lambda one: (one != first, len(one), one))
    at = {value: number / max(1, len(known) - 1) for number, value in enumerate(known)}
    return _Axis(head, [at[value] for value in values], [(at[value], markup(value, 24)) for value in known])


def _even(head: str, column: Sequence[float], words: Callable[[float], str]) -> _Axis:
    low, high = min(column), max(column)
    places = [(value - low) / (high - low) if high > low else 0.5 for value in column]
    return _Axis(head, places, [(place, words(low + place * (high - low))) for place in (0.0, 0.5, 1.0)])


def _variables(past: TuningHistory, trials: Sequence[Trial]) -> list[_Axis]:
    """Return an axis for each variable, with a place for each of its values and one where it is left as it is."""
    tried = [past.settings.get(trial.trial, {}) for trial in trials]
    return [_named(name, [one.get(name, AS_IT_IS) for one in tried], AS_IT_IS) for name in past.variables]


def _line(past: TuningHistory, trial: Trial, places: Sequence[float]) -> go.Scatter:
    color = SOURCE_LOOK.get(trial.source, (theme.GREY, ""))[0]
    now = past.settings.get(trial.trial) if past.with_restarts else trial.knobs
    kept = past.result is not None and now == (past.kept if past.with_restarts else past.result.knobs)
    return go.Scatter(
        x=list(range(len(places))),
        y=list(places),
        mode="lines+markers",
        line={"color": color, "width": 3 if kept else 1.4, "shape": "spline", "smoothing": 0.4},
        marker={"size": 5, "color": color},
        opacity=1.0 if kept or trial.source == "default" else 0.55,
        name=f"trial {trial.trial}",
        showlegend=False,
        hovertext=trial_words(past, trial),
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _axes(figure: go.Figure, axes: Sequence[_Axis], scheme: Scheme) -> None:
    tint = theme.ink(scheme)
    font = {"size": 12, "color": tint.faint}
    rows = _HEAD_ROWS if len(axes) > _HEAD_ROWS else 1  # names of variables are long
    for at, axis in enumerate(axes):
        figure.add_shape(type="line", x0=at, x1=at, y0=0, y1=1, line={"color": tint.faint, "width": 1})
        figure.add_annotation(x=at, y=1.1 + 0.1 * (at % rows), text=markup(axis.head, 40), showarrow=False, font=font)
        for place, text in axis.ticks:
            figure.add_annotation(x=at, y=place, text=text, showarrow=False, xanchor="left", xshift=8, font=font)
    figure.update_xaxes(visible=False, range=[-0.15, len(axes) - 0.65])
    figure.update_yaxes(visible=False, range=[-0.08, 1.08 + 0.1 * rows])
