"""The picture of the lanes that stands until plotly draws them: the same bars at the same places."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.figures import timeline as figures
from ringtune.dashboard.figures.timeline_sketch import sketch
from ringtune.timeline.synthetic.generate import MILLISECOND, Schedule
from tests.timeline.generated_run import generate_run

SVG = "{http://www.w3.org/2000/svg}"
PLAN = Schedule(ranks=3, steps=6, late_rank=2, late_ns=2 * MILLISECOND)
VIEWS = {
    "whole": Query(),
    "step": Query(Window(20e6, 60e6)),
    "compact": Query(compact=True),
    "some": Query(ranks=(1,), search="negotiate"),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> TimelineIndex:
    run: Path = generate_run(tmp_path_factory.mktemp("sketch"), "sketch", PLAN)
    return trace.load(run, trace.sources(run))


def boxes(svg: str) -> list[tuple[str, float, float, float, float]]:
    """Colour, left, right, top and bottom of every bar, as shares of the picture."""
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.get("preserveAspectRatio") == "none"
    _, _, width, height = map(float, str(root.get("viewBox")).split())
    found = []
    for path in root:
        assert path.tag == f"{SVG}path" and 0 < float(str(path.get("fill-opacity"))) <= 1
        for text in re.findall(r"M([^z]*)z", str(path.get("d"))):
            left, top, long, high, back = map(float, re.split("[ hv]", text))
            assert back == -long
            found.append(
                (str(path.get("fill")), left / width, (left + long) / width, top / height, (top + high) / height)
            )
    return sorted(found)


@pytest.mark.parametrize("name", VIEWS)
def test_it_has_the_bars_of_the_figure_where_the_figure_has_them(index: TimelineIndex, name: str) -> None:
    view = index.view(VIEWS[name])
    figure = figures.timeline(index, view)
    bottom, top = figure.layout.yaxis.range
    begin, end = figure.layout.xaxis.range
    wanted = []
    for bars in (one for one in figure.data if one.type == "bar" and one.orientation == "h"):
        base, x, y, width = (np.asarray(bars[name], dtype=float) for name in ("base", "x", "y", "width"))
        left, right = (base - begin) / (end - begin), (base + x - begin) / (end - begin)
        upper, lower = (y - width / 2 - top) / (bottom - top), (y + width / 2 - top) / (bottom - top)
        wanted += zip([bars.marker.color] * len(base), *(v.tolist() for v in (left, right, upper, lower)), strict=True)
    found = boxes(sketch(index, view, with_path=False).svg)
    assert len(found) == len(wanted) > 0
    for mine, theirs in zip(found, sorted(wanted), strict=True):
        assert mine[0] == theirs[0]
        assert mine[1:] == pytest.approx(theirs[1:], abs=2e-4)  # a fifth of a pixel


@pytest.mark.parametrize("name", VIEWS)
def test_names_and_height_are_those_of_the_figure(index: TimelineIndex, name: str) -> None:
    view = index.view(VIEWS[name])
    figure, found = figures.timeline(index, view), sketch(index, view, with_path=False)
    bottom, top = figure.layout.yaxis.range
    assert found.height == figure.layout.height
    assert list(found.names.values()) == list(figure.layout.yaxis.ticktext)
    assert list(found.names) == pytest.approx([(at - top) / (bottom - top) for at in figure.layout.yaxis.tickvals])


def test_the_critical_path_has_its_room(index: TimelineIndex) -> None:
    view = index.view(Query())
    figure = figures.timeline(index, view, "light", figures.Extras(index.path().within(-1e18, 1e18)))
    bottom, top = figure.layout.yaxis.range
    place = figure.layout.yaxis.tickvals[1]  # the first lane, below the path
    assert next(iter(sketch(index, view, with_path=True).names)) == pytest.approx((place - top) / (bottom - top))


def test_what_a_search_does_not_find_is_faint(index: TimelineIndex) -> None:
    def shades(search: str) -> set[float]:
        root = ElementTree.fromstring(sketch(index, index.view(Query(search=search)), with_path=False).svg)
        return {float(str(path.get("fill-opacity"))) for path in root}

    assert shades("no such thing") == {0.2}
    assert 1.0 in shades("negotiate")


def test_it_holds_no_text_of_the_run(index: TimelineIndex) -> None:
    svg = sketch(index, index.view(Query()), with_path=False).svg
    assert not any(text and text in svg for text in (*index.spans.names, *index.spans.tensors))


def test_no_lanes_no_bars(index: TimelineIndex) -> None:
    found = sketch(index, index.view(Query(ranks=(77,))), with_path=False)
    assert boxes(found.svg) == [] and found.names == {}
