"""Figures of the stragglers: who was late in which step."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.lateness import LateMap, row_words
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import duration, time_scale

HEIGHT_LIMIT = 620
_BRIGHTEST = 99
"""Percentile of the cells with lateness that takes the strongest colour: one bad step must not fade all others."""


def late_heat(found: LateMap | None, scheme: Scheme = "light") -> go.Figure:
    """Draw rank against step, coloured by lateness."""
    rows = len(found.ranks) if found is not None else 0
    figure = theme.blank(scheme, min(HEIGHT_LIMIT, max(200, 110 + 26 * rows)))
    if found is None:
        return figure
    late = found.mean_ns[found.late_steps > 0]
    top = float(np.percentile(late, _BRIGHTEST)) if len(late) else 1.0
    factor, unit = time_scale(top)
    values = np.where(found.late_steps > 0, found.mean_ns / factor, 0.0)
    single = all(first == last for first, last in found.steps)
    about = "step %{x:,.0f}" if single else f"{found.steps[0][1] - found.steps[0][0] + 1} steps about %{{x:,.0f}}"
    figure.add_trace(
        go.Heatmap(
            x=[(first + last) / 2 for first, last in found.steps],
            y=[row_words(ranks) for ranks in found.ranks],
            z=values,
            zmin=0,
            zmax=top / factor,
            colorscale=theme.LATE_SCALE,
            text=_hovers(found),
            hovertemplate=f"%{{y}} · {about}<br>%{{text}}<extra></extra>",
            xgap=1 if len(found.steps) <= 120 else 0,
            ygap=1 if rows <= 48 else 0,
            name="Lateness",
            colorbar=_bar(unit, scheme),
        )
    )
    figure.update_xaxes(title_text="Step" if single else "Step (several a column)", tickformat=",~d", showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def _bar(unit: str, scheme: Scheme) -> dict[str, object]:
    return {
        "title": {"text": f"Lateness<br>({unit} a step)", "font": {"size": 12}},
        "tickfont": {"size": 12, "color": theme.ink(scheme).faint},
        "thickness": 12,
        "outlinewidth": 0,
    }


def _hovers(found: LateMap) -> list[list[str]]:
    return [[_hover(found, row, column) for column in range(len(found.steps))] for row in range(len(found.ranks))]


def _hover(found: LateMap, row: int, column: int) -> str:
    """What a cell says below its rank and step; short, because there are thousands."""
    first, last = found.steps[column]
    late = int(found.late_steps[row, column])
    if not late:
        return "not last"
    worst = duration(float(found.worst_ns[row, column]))
    if first == last:
        return f"last by {worst}"
    mean = duration(float(found.mean_ns[row, column]))
    return f"last in {late}, mean {mean}<br>step {found.worst_step[row, column]}: {worst}"
