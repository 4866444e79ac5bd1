"""Figures of the stragglers: who was late in which step."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.lateness import LateMap, row_words
from ringtune.dashboard.theme import Scheme
from ringtune.dashboard.units import duration, time_scale

HEIGHT_LIMIT = 620
NAME = "Lateness"
_BRIGHTEST = 99
"""Percentile of the cells with lateness that takes the strongest colour: one bad step must not fade all others."""


def late_heat(found: LateMap | None, scheme: Scheme = "light") -> go.Figure:
    """Draw rank against step, coloured by lateness."""
    rows = len(found.ranks) if found is not None else 0
    figure = theme.blank(scheme, min(HEIGHT_LIMIT, max(200, 110 + 26 * rows)))
    if found is None:
        return figure
    top = brightest_ns(found)
    factor, unit = time_scale(top)
    x, z, text, about = _cells(found, factor)
    figure.add_trace(
        go.Heatmap(
            x=x,
            y=[row_words(ranks) for ranks in found.ranks],
            z=z,
            zmin=0,
            zmax=top / factor,
            colorscale=theme.LATE_SCALE,
            text=text,
            hovertemplate=about,
            xgap=1 if len(found.steps) <= 120 else 0,
            ygap=1 if rows <= 48 else 0,
            name=NAME,
            colorbar=_bar(found, (factor, unit), scheme),
        )
    )
    single = all(first == last for first, last in found.steps)
    figure.update_xaxes(title_text="Step" if single else "Step (several a column)", tickformat=",~d", showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def brightest_ns(found: LateMap) -> float:
    """Return the lateness that takes the strongest colour; its unit is that of the map."""
    late = found.mean_ns[found.late_steps > 0]
    return float(np.percentile(late, _BRIGHTEST)) if len(late) else 1.0


def more_columns(found: LateMap, at: int, unit_ns: float) -> list[dict[str, Any]]:
    """Return the columns of a map from ``at`` on, as a poll sends them."""
    x, z, text, about = _cells(found, unit_ns)
    columns = {"x": {"at": at, "values": x}, "z": {"at": at, "rows": z}, "text": {"at": at, "rows": text}}
    return [{"name": NAME, "columns": {**columns, "hovertemplate": about}}]


def _cells(found: LateMap, unit_ns: float) -> tuple[list[float], list[list[float]], list[list[str]], str]:
    """Return where columns stand, the values and texts of rows, and how a cell is called."""
    values = np.round(np.where(found.late_steps > 0, found.mean_ns / unit_ns, 0.0), 5).tolist()
    width = found.steps[0][1] - found.steps[0][0] + 1
    about = "step %{x:,.0f}" if width == 1 else f"{width} steps about %{{x:,.0f}}"
    x = [(first + last) / 2 for first, last in found.steps]
    return x, values, _hovers(found), f"%{{y}} · {about}<br>%{{text}}<extra></extra>"


def clipped_words(found: LateMap, top_ns: float | None = None) -> str:
    """Return where the colours end, if a cell is beyond; else nothing.

    Args:
        found: All that is drawn.
        top_ns: Where the colours end, if they were chosen for an earlier state of the map.
    """
    top, worst = brightest_ns(found) if top_ns is None else top_ns, float(found.mean_ns.max(initial=0.0))
    return f"; colours end at {duration(top)}, the worst cell has {duration(worst)}" if worst > top else ""


def _bar(found: LateMap, scale: tuple[float, str], scheme: Scheme) -> dict[str, object]:
    factor, unit = scale
    top = brightest_ns(found) / factor
    ends = {"tickvals": [0, top], "ticktext": ["0", f"≥ {top:.3g}"]} if clipped_words(found) else {}
    return {
        "title": {"text": f"Lateness<br>({unit} a step)", "font": {"size": 12}},
        "tickfont": {"size": 12, "color": theme.ink(scheme).faint},
        "ticklabelposition": "outside bottom",  # the highest one would lie over the title
        "thickness": 12,
        "outlinewidth": 0,
        **ends,
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
