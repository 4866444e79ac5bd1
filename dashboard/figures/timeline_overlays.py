"""What lies over the timeline's lanes: the critical path, and a collective followed across ranks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from ringtune.dashboard import theme
from ringtune.dashboard.data.timeline.collective import Followed
from ringtune.dashboard.data.timeline.path import PathTable
from ringtune.dashboard.theme import PHASES, Scheme
from ringtune.dashboard.units import duration
from ringtune.timeline.analysis.critical_path import CAUSES
from ringtune.timeline.units import numbered_text
from ringtune.timeline.vocabulary import Stage

NS_PER_AXIS = 1e6
"""Axes count milliseconds."""
PATH_PLACE = -1.25
"""Vertical place of the critical path's own lane, above all others."""

STAGE_OF_CAUSE = {
    "compute": Stage.STEP,
    "late": Stage.STEP,
    "control": Stage.NEGOTIATE,
    "queue": Stage.QUEUE,
    "copy_in": Stage.COPY_IN,
    "transfer": Stage.COMMUNICATE,
    "copy_out": Stage.COPY_OUT,
    "wake": Stage.WAIT,
    "unknown": Stage.WAIT,
}
"""On which lane of its rank a cause is drawn."""

WORDS = {
    "compute": ("computing", theme.COMPUTE_COLOR),
    "late": ("late: all others waited for it", "#7B1E1E"),
    "control": ("negotiation: agreed after the last submit", PHASES["negotiate"].color),
    "queue": ("queued behind another batch", PHASES["queue"].color),
    "copy_in": ("copying in", PHASES["copy_in"].color),
    "transfer": ("the batch on the links", PHASES["communicate"].color),
    "copy_out": ("copying out", PHASES["copy_out"].color),
    "wake": ("done, until the caller went on", PHASES["wait"].color),
    "unknown": ("a wait that no recorded batch explains", PHASES["other"].color),
}
Places = Mapping[tuple[int, Stage], float]
"""Vertical place of each lane, by rank and stage."""


def draw_path(figure: go.Figure, found: tuple[PathTable, bool], places: Places, scheme: Scheme) -> None:
    """Draw the critical path in a lane of its own, and through the lanes where every stretch can be seen."""
    path, exact = found
    if not len(path):
        return
    causes = [CAUSES[code] for code in path.cause.tolist()]
    figure.add_trace(
        go.Bar(
            orientation="h",
            name="critical path",
            base=path.begin_ns / NS_PER_AXIS,
            x=(path.end_ns - path.begin_ns) / NS_PER_AXIS,
            y=np.full(len(path), PATH_PLACE),
            width=0.72,
            marker={"color": [WORDS[cause][1] for cause in causes], "line": {"width": 0}},
            hovertext=[_path_hover(path, n, exact) for n in range(len(path))],
            hovertemplate="%{hovertext}<extra></extra>",
            showlegend=False,
        )
    )
    if exact:
        _draw_walk(figure, path, places, scheme)


def _path_hover(path: PathTable, n: int, exact: bool) -> str:
    words = WORDS[CAUSES[int(path.cause[n])]][0]
    begin, end, batch = int(path.begin_ns[n]), int(path.end_ns[n]), int(path.batch[n])
    facts = [f"step {int(path.step[n])}"] if path.step[n] >= 0 else []
    facts += [numbered_text(batch)] if batch > 0 else []
    amount = f"{duration(end - begin)}" if exact else f"most of {duration(end - begin)}; zoom in to see each"
    return f"<b>critical path</b> · rank {int(path.rank[n])}<br>{words}<br>{amount}<br>{' · '.join(facts)}"


def _draw_walk(figure: go.Figure, path: PathTable, places: Places, scheme: Scheme) -> None:
    """A line from lane to lane along the critical path."""
    x, y = list[float | None](), list[float | None]()
    for begin, end, rank, code in zip(
        *(one.tolist() for one in (path.begin_ns, path.end_ns, path.rank, path.cause)), strict=True
    ):
        place = places.get((rank, STAGE_OF_CAUSE[CAUSES[code]]))
        if place is None:  # this lane is not shown
            x.append(None)
            y.append(None)
            continue
        x += [begin / NS_PER_AXIS, end / NS_PER_AXIS]
        y += [place, place]
    line = {"color": theme.ink(scheme).text, "width": 2.2}
    figure.add_trace(
        go.Scatter(x=x, y=y, mode="lines", name="critical path", line=line, opacity=0.75, hoverinfo="skip")
    )


def draw_followed(figure: go.Figure, followed: Followed, places: Places, scheme: Scheme) -> None:
    """Frame a batch on every rank and join its beginnings and its ends."""
    color = theme.ink(scheme).text
    rows = [
        (one, places[one.rank, Stage.COMMUNICATE]) for one in followed.ranks if (one.rank, Stage.COMMUNICATE) in places
    ]
    for one, place in rows:
        figure.add_shape(
            type="rect", x0=one.begin_ns / NS_PER_AXIS, x1=one.end_ns / NS_PER_AXIS, y0=place - 0.47, y1=place + 0.47,
            line={"color": color, "width": 2},
        )  # fmt: skip
    x, y = list[float | None](), list[float | None]()
    for moment in ("begin_ns", "end_ns"):
        x += [*(getattr(one, moment) / NS_PER_AXIS for one, _ in rows), None]
        y += [*(place for _, place in rows), None]
    line = {"color": color, "width": 1.2, "dash": "dot"}
    called = numbered_text(followed.batch, followed.label)
    figure.add_trace(go.Scatter(x=x, y=y, mode="lines", name=called, line=line, hoverinfo="skip"))
    asked = [
        (one.submit_ns / NS_PER_AXIS, places[one.rank, Stage.NEGOTIATE], one.rank)
        for one in followed.ranks
        if one.submit_ns is not None and (one.rank, Stage.NEGOTIATE) in places
    ]
    if asked:
        last = [theme.VERMILLION if rank == followed.last_rank else color for _, _, rank in asked]
        figure.add_trace(
            go.Scatter(
                x=[at for at, _, _ in asked],
                y=[place for _, place, _ in asked],
                mode="markers",
                name="submitted",
                marker={"symbol": "triangle-right", "size": 11, "color": last},
                hovertext=[f"rank {rank} had submitted all of {called}" for _, _, rank in asked],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
