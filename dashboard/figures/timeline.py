"""The figure of the timeline: a bar for every shape, lanes by rank and phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.timeline.collective import Followed
from ringtune.dashboard.data.timeline.families import NONE, families
from ringtune.dashboard.data.timeline.index import TimelineIndex, View
from ringtune.dashboard.data.timeline.levels import Lane
from ringtune.dashboard.data.timeline.path import PathTable
from ringtune.dashboard.data.timeline.shapes import Floats, Shapes
from ringtune.dashboard.figures.timeline_overlays import NS_PER_AXIS, PATH_PLACE, draw_followed, draw_path
from ringtune.dashboard.theme import FAMILIES, PHASES, Scheme
from ringtune.dashboard.units import duration, markup, size
from ringtune.timeline.spans import Instant, Ints
from ringtune.timeline.units import numbered_text
from ringtune.timeline.vocabulary import STAGE_OF_LABEL

LANE_PIXELS = 21
RANK_GAP = 0.55
ROW_MORE, STACK_ROW = 0.16, 0.75
FILL = 0.82
MARGINS = {"l": 124, "r": 12, "t": 49, "b": 44}
"""Pixels around the lanes; above them is a legend of one row, for which plotly would make this room anyway."""
_FAINT = 0.16
_LABEL_FONT = {"color": "#ffffff", "size": 11}
LANE_LETTERS = 14
"""The number of letters that fit before a lane."""
LETTERS = 150
"""The approximate number of letters that fit into the width of a window."""


@dataclass(frozen=True)
class Extras:
    """What is drawn over the lanes: the critical path in the window and whether it is whole, and a followed batch."""

    path: tuple[PathTable, bool] | None = None
    followed: Followed | None = None


def timeline(index: TimelineIndex, view: View, scheme: Scheme = "light", extras: Extras | None = None) -> go.Figure:
    """Draw a view: one trace of bars per phase, so that the legend hides and shows phases."""
    places, extras = places_of(view.lanes, view.compact), extras or Extras()
    figure = theme.blank(scheme, height_of(places))
    for phase, columns in _phases(index, view, places):
        edge = columns.pop("edge")
        figure.add_trace(_bars(phase, columns))
        if any(edge):
            figure.add_trace(_edge_labels(phase, view, columns["y"], edge))
    _instants(figure, index, view, places)
    by_lane = {(lane.rank, lane.stage): place for lane, place in zip(view.lanes, places.tolist(), strict=True)}
    if extras.path is not None:
        draw_path(figure, extras.path, by_lane, scheme)
    if extras.followed is not None:
        draw_followed(figure, extras.followed, by_lane, scheme)
    _axes(figure, view, places, scheme)
    if extras.path is not None:
        _room_for_path(figure, places)
    return figure


def _room_for_path(figure: go.Figure, places: Floats) -> None:
    """Move the top of the axis up by a lane, and name it."""
    figure.update_yaxes(
        tickvals=[PATH_PLACE, *figure.layout.yaxis.tickvals],
        ticktext=["Critical path", *figure.layout.yaxis.ticktext],
        range=vertical_range(places, with_path=True),
    )


def vertical_range(places: Floats, *, with_path: bool) -> list[float]:
    """Return bottom and top of the vertical axis: the critical path has a lane above all others."""
    return [float(places[-1]) + 0.7 if len(places) else 1.0, PATH_PLACE - 0.6 if with_path else -0.35]


def places_of(lanes: tuple[Lane, ...], compact: bool = False) -> Floats:
    """Return the vertical place of every lane, with a gap between ranks; ``compact``: one place for all of a rank."""
    if compact:
        number = {rank: at for at, rank in enumerate(dict.fromkeys(lane.rank for lane in lanes))}
        return np.array([0.5 + number[lane.rank] for lane in lanes], dtype=np.float64)
    heights = _heights(lanes)
    gaps = [0.0] + [RANK_GAP if later.rank != former.rank else 0.0 for former, later in pairwise(lanes)]
    tops = np.cumsum(heights + np.array(gaps[: len(lanes)], dtype=np.float64)) - heights
    centres: Floats = tops + heights / 2
    return centres


def _heights(lanes: tuple[Lane, ...]) -> Floats:
    """Return the heights of lanes: more for those whose spans lie in several rows, less for those of a stack."""
    heights = [STACK_ROW if lane.thread else 1 + ROW_MORE * (lane.rows - 1) for lane in lanes]
    return np.array(heights, dtype=np.float64)


def height_of(places: Floats) -> int:
    """Return the height of the figure in pixels."""
    rows = float(places[-1]) + 1 if len(places) else 4
    return int(min(max(110 + LANE_PIXELS * rows, 260), 2400))


def more_bars(index: TimelineIndex, tail: View) -> list[dict[str, Any]]:
    """Return the values to append to the traces of `timeline` so that they show a tail too, by their names."""
    return [
        {"name": phase.label, "columns": {name: _plain(values) for name, values in columns.items() if name != "edge"}}
        for phase, columns in _phases(index, tail, places_of(tail.lanes, tail.compact))
    ]


def _plain(values: Sequence[Any] | Floats) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def by_phase(index: TimelineIndex, view: View) -> list[tuple[theme.Phase, Ints]]:
    """Return which shapes are of each phase, and of each family of a profile's calls and kernels."""
    stage_of = np.array([int(lane.stage) for lane in view.lanes], dtype=np.int64)[view.shapes.lane]
    family = families(index, view)
    of_none = np.where(family == NONE, stage_of, -1)
    phases = [(phase, np.flatnonzero(of_none == int(STAGE_OF_LABEL[stage]))) for stage, phase in PHASES.items()]
    return phases + [(one, np.flatnonzero(family == place)) for place, one in enumerate(FAMILIES.values())]


def _phases(index: TimelineIndex, view: View, places: Floats) -> list[tuple[theme.Phase, dict[str, Any]]]:
    """Return the columns of every phase that has something to show."""
    chosen = by_phase(index, view)
    # All at once: a poll brings little to each phase.
    columns, found, first = _columns(index, view, np.concatenate([bars for _, bars in chosen]), places), [], 0
    for phase, bars in chosen:
        part = slice(first, first + len(bars))
        if len(bars):
            found.append((phase, {name: values[part] for name, values in columns.items()}))
        first = part.stop
    return found


def _bars(phase: theme.Phase, columns: dict[str, Any]) -> go.Bar:
    opacity = columns.pop("marker.opacity")
    return go.Bar(
        orientation="h",
        name=phase.label,
        marker={"color": phase.color, "opacity": opacity, "line": {"width": 0}},
        textposition="inside",
        insidetextanchor="start",
        constraintext="none",
        textangle=0,
        textfont=_LABEL_FONT,
        hovertemplate="%{hovertext}<extra></extra>",
        legendgroup=phase.label,
        **columns,
    )


def _edge_labels(phase: theme.Phase, view: View, places: Floats, labels: list[str]) -> go.Scatter:
    """Write the labels of bars that began before the window at its edge; a bar's own text would begin outside."""
    written = [(place, label) for place, label in zip(places.tolist(), labels, strict=True) if label]
    return go.Scatter(
        x=[view.window.begin_ns / NS_PER_AXIS] * len(written),
        y=[place for place, _ in written],
        text=[f"\u00a0{label}" for _, label in written],  # not at the very edge
        name=f"{phase.label}, began before",
        mode="text",
        textposition="middle right",
        textfont=_LABEL_FONT,
        hoverinfo="skip",
        showlegend=False,
        legendgroup=phase.label,
    )


@dataclass(frozen=True)
class Boxes:
    """Where bars lie: from ``begin_ns``, ``length_ns`` long, around ``centre`` and ``height`` lanes high."""

    begin_ns: Floats
    length_ns: Floats
    centre: Floats
    height: Floats
    opacity: Floats


def boxes_of(view: View, chosen: Ints, places: Floats) -> Boxes:
    """Return where the bars of shapes lie."""
    shapes = view.shapes
    lane = shapes.lane[chosen]
    rows = np.array([one.rows for one in view.lanes], dtype=np.int64)[lane]
    row = shapes.row[chosen]
    # A block stands for all rows of its lane; a span takes its own.
    full = FILL * (np.ones(len(lane)) if view.compact else _heights(view.lanes)[lane])
    height = np.where(row < 0, full, full / rows)
    offset = np.where(row < 0, 0.0, ((row + 0.5) / rows - 0.5) * full)
    # A span shorter than a pixel must still be seen.
    least = view.window.length_ns / 2000
    length = np.maximum(shapes.end_ns[chosen] - shapes.begin_ns[chosen], least)
    opacity = 0.35 + 0.65 * shapes.share[chosen]
    if view.searched:
        opacity = np.where(shapes.hit[chosen], 1.0, _FAINT)
    return Boxes(shapes.begin_ns[chosen].astype(np.float64), length, places[lane] + offset, height, opacity)


def _columns(index: TimelineIndex, view: View, chosen: Ints, places: Floats) -> dict[str, Any]:
    """Return the values of each bar."""
    shapes, boxes = view.shapes, boxes_of(view, chosen, places)
    rows = np.array([one.rows for one in view.lanes], dtype=np.int64)[shapes.lane[chosen]]
    # Names only where a span has its lane for itself, and where a search does not dim it.
    named = (rows == 1) & (shapes.hit[chosen] | (not view.searched))
    begin, end, window = boxes.begin_ns, boxes.begin_ns + boxes.length_ns, view.window
    cut = (begin < window.begin_ns) & (end > window.begin_ns)
    # What is drawn beside the window has its label for when it is moved there.
    seen = np.minimum(end, np.where(begin < window.end_ns, window.end_ns, np.inf)) - np.where(
        cut, window.begin_ns, begin
    )
    room = np.where(named, LETTERS * seen / window.length_ns, 0).astype(int)
    labels = [_label(index, span, fit) for span, fit in zip(shapes.span[chosen].tolist(), room.tolist(), strict=True)]
    return {
        "base": boxes.begin_ns / NS_PER_AXIS,
        "x": boxes.length_ns / NS_PER_AXIS,
        "y": boxes.centre,
        "width": boxes.height,
        "marker.opacity": boxes.opacity,
        "text": ["" if outside else label for outside, label in zip(cut.tolist(), labels, strict=True)],
        "edge": [label if outside else "" for outside, label in zip(cut.tolist(), labels, strict=True)],
        # A list: of packed columns Dash does not say which number was clicked.
        "customdata": _batches(index, shapes.span[chosen]),
        "hovertext": [_hover(index, view, n) for n in chosen.tolist()],
    }


def _batches(index: TimelineIndex, span: Ints) -> list[int]:
    """Return the batch of every span; 0 for blocks."""
    batches: list[int] = np.where(span >= 0, index.spans.batch[np.maximum(span, 0)], 0).tolist()
    return batches


def _label(index: TimelineIndex, span: int, room: int) -> str:
    """Return the name to write into a span, as far as there is room for it."""
    if span < 0 or room < 5:
        return ""
    spans = index.spans
    step = int(spans.step[span])
    text = spans.tensors[spans.tensor[span]] or spans.names[spans.name[span]]
    return f"step {step}" if text == "STEP" and step >= 0 else markup(text, min(room, 60))


def _hover(index: TimelineIndex, view: View, n: int) -> str:
    shapes: Shapes = view.shapes
    lane = view.lanes[int(shapes.lane[n])]
    begin, end, span = int(shapes.begin_ns[n]), int(shapes.end_ns[n]), int(shapes.span[n])
    phase = PHASES[lane.stage.label]
    if span >= 0:
        return _span_hover(index, span, lane, phase)
    return (
        f"<b>{int(shapes.count[n]):,} spans</b> · {phase.label} · rank {lane.rank}<br>"
        f"{duration(end - begin)} from {duration(begin)}, {100 * float(shapes.share[n]):.0f} % covered<br>"
        "zoom in to see each"
    )


def _span_hover(index: TimelineIndex, span: int, lane: Lane, phase: theme.Phase) -> str:
    spans = index.spans
    begin, end = int(spans.begin_ns[span]), int(spans.end_ns[span])
    tensor = spans.tensors[spans.tensor[span]]
    kind = markup(lane.thread, 40) or phase.label
    lines = [f"<b>{markup(spans.names[spans.name[span]], 80)}</b> · {kind} · rank {lane.rank}"]
    lines += [f"tensor {markup(tensor, 90)}"] if tensor else []
    lines.append(f"{duration(end - begin)}, from {begin / 1e6:,.3f} to {end / 1e6:,.3f} ms")
    facts = []
    if volume := int(spans.bytes[span]):
        rate = (
            f" at {size(volume * 1e9 / (end - begin))}/s" if end > begin and lane.stage.label == "communicate" else ""
        )
        facts.append(f"{size(volume)}{rate}")
    facts += [numbered_text(int(spans.batch[span]), tensor)] if spans.batch[span] else []
    facts += [f"step {int(spans.step[span])}"] if spans.step[span] >= 0 else []
    facts.append(f"knobs version {int(spans.knobs_version[span])}")
    return "<br>".join([*lines, " · ".join(facts)])


def _instants(figure: go.Figure, index: TimelineIndex, view: View, places: Floats) -> None:
    """Mark knob changes, stalls and errors on the top lane of their rank."""
    looks = {
        "KNOBS": ("triangle-down", theme.OLIVE),
        "STALL": ("x", theme.VERMILLION),
        "ERROR": ("x", theme.VERMILLION),
    }
    tops: dict[int, float] = {}
    for lane, place in zip(view.lanes, places.tolist(), strict=True):
        tops.setdefault(lane.rank, place)
    for name, (symbol, color) in looks.items():
        shown = [i for i in index.instants if i.name == name and i.rank in tops and _inside(i, view)][:300]
        if shown:
            figure.add_trace(
                go.Scatter(
                    x=[instant.at_ns / NS_PER_AXIS for instant in shown],
                    y=[tops[instant.rank] - 0.6 for instant in shown],
                    mode="markers",
                    name=name.lower(),
                    marker={"symbol": symbol, "size": 10, "color": color},
                    hovertext=[_instant_hover(instant) for instant in shown],
                    hovertemplate="%{hovertext}<extra></extra>",
                )
            )


def _inside(instant: Instant, view: View) -> bool:
    return view.window.begin_ns <= instant.at_ns <= view.window.end_ns


def _instant_hover(instant: Instant) -> str:
    facts = [f"{markup(key, 30)}: {markup(value, 120)}" for key, value in list(instant.args.items())[:8]]
    return "<br>".join([f"<b>{markup(instant.name)}</b> · rank {instant.rank} · {instant.at_ns / 1e6:,.3f} ms", *facts])


def ticks_of(view: View, places: Floats) -> dict[float, str]:
    """Return the labels of the lanes by position: the ranks, or the phases."""
    rows = [(place, lane) for place, lane in zip(places.tolist(), view.lanes, strict=True) if not lane.depth]
    return {place: f"rank {lane.rank}" if view.compact else _called(lane) for place, lane in rows}


def _called(lane: Lane) -> str:
    """Return a thread, as much of its name as there is room for, or else the phase."""
    return markup(lane.thread, LANE_LETTERS) or PHASES[lane.stage.label].label


def _name_ranks(figure: go.Figure, view: View, places: Floats, scheme: Scheme) -> None:
    """Write the ranks beside the names of their phases."""
    ranks: dict[int, list[float]] = {}
    for lane, place in zip(view.lanes, places.tolist(), strict=True):
        ranks.setdefault(lane.rank, []).append(place)
    for rank, own in ranks.items():
        figure.add_annotation(
            text=f"<b>rank {rank}</b>",
            xref="paper",
            x=0,
            xanchor="right",
            xshift=-98,  # left of the longest name of a phase
            y=(own[0] + own[-1]) / 2,
            textangle=-90,
            showarrow=False,
            font={"size": 12, "color": theme.ink(scheme).text},
        )


def _axes(figure: go.Figure, view: View, places: Floats, scheme: Scheme) -> None:
    if not view.compact:
        _name_ranks(figure, view, places, scheme)
    ticks = ticks_of(view, places)
    figure.update_yaxes(
        tickvals=list(ticks),
        ticktext=list(ticks.values()),
        range=vertical_range(places, with_path=False),
        fixedrange=True,
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(
        title_text="Time since the job's first event (ms)",
        range=[view.window.begin_ns / NS_PER_AXIS, view.window.end_ns / NS_PER_AXIS],
        tickformat=",.12~g",
        zeroline=False,
    )
    figure.update_layout(
        dragmode="pan",
        hovermode="closest",
        margin=MARGINS,
        uirevision="window",
        showlegend=True,
        legend={"itemsizing": "constant", "traceorder": "normal"},
    )
