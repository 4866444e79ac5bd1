"""The lanes as a plain picture, sent with the page and shown while the browser loads plotly for a second or two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtune.dashboard.data.timeline.index import TimelineIndex, View
from ringtune.dashboard.data.timeline.shapes import Floats
from ringtune.dashboard.figures.timeline import boxes_of, by_phase, height_of, places_of, ticks_of, vertical_range

WIDTH = 2000
"""Of the picture's coordinates, whatever it is stretched to."""
LANE = 100
"""Units of a lane."""
SHADES = 5
"""The number of distinct degrees of opacity."""


@dataclass(frozen=True)
class Sketch:
    """Lanes of a view as SVG, to be stretched over the area of the plot.

    Attributes:
        svg: The picture; it holds numbers and the colours of phases, and no text of a run.
        height: Of the whole figure, in pixels.
        names: What stands before the lanes, by how far down it stands, as a share of the height of the plot's area.
    """

    svg: str
    height: int
    names: dict[float, str]


def sketch(index: TimelineIndex, view: View, *, with_path: bool) -> Sketch:
    """Draw a view as `ringtune.dashboard.figures.timeline` does, without what it says.

    ``with_path``: leave room for the critical path.
    """
    places = places_of(view.lanes, view.compact)
    bottom, top = vertical_range(places, with_path=with_path)
    paths = []
    for phase, chosen in by_phase(index, view):
        boxes = boxes_of(view, chosen, places)
        shades = np.maximum(1, np.rint(SHADES * boxes.opacity)).astype(np.int64)
        left = (boxes.begin_ns - view.window.begin_ns) * WIDTH / view.window.length_ns
        width = boxes.length_ns * WIDTH / view.window.length_ns
        upper, height = LANE * (boxes.centre - boxes.height / 2 - top), LANE * boxes.height
        for shade in sorted(set(shades.tolist())):
            mine = shades == shade
            shape = _outline(left[mine], upper[mine], width[mine], height[mine])
            paths.append(f'<path fill="{phase.color}" fill-opacity="{shade / SHADES:g}" d="{shape}"/>')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {LANE * (bottom - top):.0f}" '
        f'preserveAspectRatio="none">{"".join(paths)}</svg>'
    )
    names = {(place - top) / (bottom - top): text for place, text in ticks_of(view, places).items()}
    return Sketch(svg, height_of(places), names)


def _outline(left: Floats, upper: Floats, width: Floats, height: Floats) -> str:
    columns = [np.rint(values * 10) / 10 for values in (left, upper, width, height)]
    rows = zip(*(values.tolist() for values in columns), strict=True)
    return "".join(f"M{x:g} {y:g}h{w:g}v{h:g}h{-w:g}z" for x, y, w, h in rows)
