"""One calm design: colours of phases and ranks, and the plotly template of both schemes.

Every phase has one colour on every page, the same in both schemes. The hues are close to Okabe and Ito's; all colours
have 3:1 and more on white and on the dark surface (WCAG 2.1, 1.4.11), which leaves a narrow band of brightness. Within
it they were chosen by search, so that the two that look most alike with a common colour blindness are still distinct;
tests compute both.

Source: Okabe, Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import plotly.graph_objects as go

Scheme = Literal["light", "dark"]

FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif'

BLUE, OCHRE, GREEN, VERMILLION = "#1F78B4", "#93692D", "#009E73", "#D55E00"
SKY, PURPLE, OLIVE, GREY = "#3796EC", "#C975AB", "#8D9A33", "#697179"


@dataclass(frozen=True)
class Phase:
    """A phase of a training step as it is shown: its name for people, its colour, what it means."""

    label: str
    color: str
    meaning: str


PHASES: dict[str, Phase] = {
    "step": Phase("Step", GREY, "one optimizer step"),
    "range": Phase("Range", OLIVE, "an interval named by the training script"),
    "negotiate": Phase("Negotiate", PURPLE, "from submit to the agreement of all ranks"),
    "queue": Phase("Queue", OCHRE, "agreed, waiting for its batch to start"),
    "copy_in": Phase("Copy in", SKY, "copy into the fusion buffer"),
    "communicate": Phase("Communicate", BLUE, "a batch on the links"),
    "copy_out": Phase("Copy out", GREEN, "copy out of the fusion buffer"),
    "wait": Phase("Wait", VERMILLION, "the training loop is blocked: by communication, or for a late rank"),
    "kernel": Phase("Kernel", "#8C95A3", "a GPU computed, by another tool's recording"),
    "other": Phase("Other", GREY, "a span that ringtune did not record"),
}
"""Phases in the order of their lanes, by the stage's name in the trace."""

FAMILIES: dict[str, Phase] = {
    "data": Phase("Data loading", OCHRE, "the training loop fetches its next batch"),
    "collective": Phase("Collective calls", BLUE, "the program's side of a collective"),
    "optimizer": Phase("Optimizer", OLIVE, "the optimizer's step, or clearing gradients"),
    "matrix": Phase("Matrices", GREEN, "matrix products, convolutions and attention, forward and backward"),
    "layer": Phase("Norms, activations", PURPLE, "normalisations, activations, pooling, losses and embeddings"),
    "copy": Phase("Copies", SKY, "copies and conversions"),
}
"""What calls and kernels that other tools recorded are for; those of no family have the colour of their phase."""

COMPUTE_COLOR = PHASES["kernel"].color
OVERLAPPED_COLOR = BLUE
EXPOSED_COLOR = VERMILLION
LATE_COLOR = OCHRE
BEST_COLOR = GREEN
DEFAULT_COLOR = GREY

LATE_SCALE = [[0.0, "rgba(138,146,158,0.15)"], [0.001, "rgba(213,94,0,0.2)"], [1.0, "rgba(213,94,0,1)"]]
"""A scale of lateness for both schemes, from a colour that is hardly visible to the colour of waiting."""

RANK_COLORS = (BLUE, OCHRE, GREEN, PURPLE, SKY, VERMILLION, OLIVE, GREY)
DASHES = ("solid", "dash", "dot", "dashdot")


PLOT_CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "responsive": True,
    # Newer plotly offers to upload charts to its maker; nothing leaves the machine here.
    "modeBarButtonsToRemove": ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d", "autoScale2d"],
    "plotlyServerURL": "",
    "toImageButtonOptions": {"format": "svg", "filename": "ringtune"},
}
"""How plotly behaves in the browser, in the dashboard and in reports."""


@dataclass(frozen=True)
class Ink:
    """What differs between the schemes."""

    text: str
    faint: str
    grid: str
    surface: str


INKS: dict[str, Ink] = {
    "light": Ink(text="#25292f", faint="#6b7280", grid="#e6e8ec", surface="#ffffff"),
    "dark": Ink(text="#d7dae0", faint="#9aa1ac", grid="#363a41", surface="#24262b"),
}


def scheme_of(value: object) -> Scheme:
    """Return the scheme a browser reported; light when it reported nothing yet."""
    return "dark" if value == "dark" else "light"


def ink(scheme: Scheme) -> Ink:
    """Return the colours of text and grid of a scheme."""
    return INKS[scheme]


def rank_color(rank: int) -> str:
    """Return the colour of a rank; it repeats after eight, where lines change their dash."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def rank_dash(rank: int) -> str:
    """Return the dash of a rank's line."""
    return DASHES[rank // len(RANK_COLORS) % len(DASHES)]


_TOP, _BOTTOM = 30, 44
LEGEND_GAP = 8
"""Pixels between a plot and the legend above it."""


@cache
def template(scheme: Scheme) -> go.layout.Template:
    """Return the plotly template: transparent paper, thin grid, quiet axes, legend above the plot."""
    tint = INKS[scheme]
    axis: dict[str, Any] = {
        "gridcolor": tint.grid,
        "linecolor": tint.grid,
        "zerolinecolor": tint.grid,
        "zerolinewidth": 1,
        "ticks": "",
        "tickfont": {"color": tint.faint, "size": 12},
        "title": {"font": {"color": tint.faint, "size": 12}, "standoff": 8},
        "automargin": True,
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 13, "color": tint.text},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(RANK_COLORS),
            "margin": {"l": 56, "r": 16, "t": _TOP, "b": _BOTTOM},
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "bgcolor": tint.surface,
                "bordercolor": tint.grid,
                "align": "left",
                "font": {"family": FONT, "size": 12, "color": tint.text},
            },
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,  # `blank` sets these itself
                "yanchor": "bottom",
                "font": {"size": 12, "color": tint.text},
                "title": {"font": {"size": 12, "color": tint.faint}},
            },
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": tint.faint, "activecolor": tint.text},
            "colorscale": {"sequential": "Cividis"},
        }
    )


def blank(scheme: Scheme, height: int) -> go.Figure:
    """Return an empty figure in the design, ``height`` pixels high."""
    figure = go.Figure()
    gap = LEGEND_GAP / max(1, height - _TOP - _BOTTOM)
    figure.update_layout(template=template(scheme), height=height, barmode="overlay", legend={"y": 1 + gap})
    return figure


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float], color: str) -> go.Scatter:
    """Return the shaded area between two lines, which says nothing when it is pointed at and is not in the legend."""
    return go.Scatter(
        x=[*x, *reversed(x)],
        y=[*high, *reversed(low)],
        mode="lines",
        fill="toself",
        fillcolor=color,
        opacity=0.17,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )


def say(figure: go.Figure, why: str) -> go.Figure:
    """Return a figure that has nothing to draw, with the reason in its middle."""
    figure.add_annotation(text=why, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    return figure.update_xaxes(visible=False).update_yaxes(visible=False)
