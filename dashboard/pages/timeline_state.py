"""What the timeline's page shows, as plain values: read from its controls and from its address, and written into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ringtune.dashboard.data.timeline.index import TimelineIndex, View
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.figures.timeline_overlays import NS_PER_AXIS
from ringtune.dashboard.routes import Route
from ringtune.dashboard.theme import PHASES
from ringtune.dashboard.units import count, duration
from ringtune.timeline.vocabulary import STAGE_OF_LABEL, Stage

START_STEPS = 3


@dataclass(frozen=True)
class Controls:
    """What the page's controls say when something happened to one of them.

    Attributes:
        event: What the figure, or the minimap, sent.
        search: Text of the search.
        step: Step to jump to.
        held: The window shown before.
    """

    event: dict[str, Any] | None
    search: str
    step: object
    held: Window | None


def asked(route: Route) -> dict[str, Any]:
    """Return the state that an address asks for."""
    begin, end, batch = route.number("from"), route.number("to"), route.number("batch")
    window = [begin * NS_PER_AXIS, end * NS_PER_AXIS] if begin is not None and end is not None and begin < end else None
    return {"window": window, "revision": 0, "batch": int(batch or 0)}


def dragged(event: dict[str, Any] | None) -> Window | str | None:
    """Return the window that a zoom or pan in the browser left, ``all`` for a double click, None for anything else."""
    event = event or {}
    if event.get("xaxis.autorange"):
        return "all"
    ends = event.get("xaxis.range") or [event.get("xaxis.range[0]"), event.get("xaxis.range[1]")]
    return _window(ends)


def brushed(event: dict[str, Any] | None) -> Window | None:
    """Return the window chosen by dragging over the minimap; None for anything else."""
    chosen = (event or {}).get("range")
    return _window(chosen.get("x")) if isinstance(chosen, dict) else None


def _window(ends: object) -> Window | None:
    if not (isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, (int, float)) for end in ends)):
        return None
    window = Window(min(ends) * NS_PER_AXIS, max(ends) * NS_PER_AXIS)
    return window if window.length_ns > 0 else None


def centred(index: TimelineIndex, event: dict[str, Any] | None, held: Window | None) -> Window | None:
    """Return the window moved to where the minimap was clicked; as it was when that was nowhere."""
    points = (event or {}).get("points") or [{}]
    at = points[0].get("x")
    if held is None or not isinstance(at, (int, float)):
        return held
    half = min(held.length_ns, index.extent.length_ns) / 2
    return Window(at * NS_PER_AXIS - half, at * NS_PER_AXIS + half)


def clicked_batch(event: dict[str, Any] | None) -> int:
    """Return the batch or message of the span that was clicked; 0 where there is none."""
    points = (event or {}).get("points") or [{}]
    batch = points[0].get("customdata")
    return int(batch) if isinstance(batch, (int, float)) else 0


def next_window(index: TimelineIndex, trigger: str | None, controls: Controls) -> tuple[Window | None, bool]:
    """Return the window to show after an event, and whether the server chose it (then the browser must follow).

    Args:
        index: The timeline.
        trigger: Which control changed, ``id.property``.
        controls: What the controls say.
    """
    control = (trigger or "").partition(".")[0]
    if trigger == "timeline-graph.relayoutData":
        moved = dragged(controls.event)
        if isinstance(moved, Window):
            return moved, False
        return (None, True) if moved == "all" else (controls.held, False)
    if trigger == "timeline-map.selectedData":
        return brushed(controls.event) or controls.held, True
    if trigger == "timeline-map.clickData":
        return centred(index, controls.event, controls.held), True
    if control == "timeline-fit":
        return None, True
    if control == "timeline-start":
        return first_steps(index), True
    if control == "timeline-step" and isinstance(controls.step, (int, float)):
        window = index.step_window(int(controls.step))
        return (window, True) if window else (controls.held, False)
    if control == "timeline-next":
        held = index.clamped(controls.held)
        found = index.next_hit(controls.search, (held.begin_ns + held.end_ns) / 2)
        return (found, True) if found else (controls.held, False)
    return controls.held, False


def first_steps(index: TimelineIndex) -> Window | None:
    """Return the window of the first steps after the warm-up; None when no steps were recorded."""
    known = index.step_range()
    if known is None:
        return None
    first = min(known[0] + 1, known[1])
    return index.step_window(first, min(first + START_STEPS - 1, known[1]))


def stages_of(labels: list[str] | None) -> tuple[Stage, ...]:
    """Return the stages that the choice of phases names."""
    return tuple(STAGE_OF_LABEL[label] for label in labels or [] if label in PHASES)


def note(index: TimelineIndex, view: View, missed_step: object = None) -> str:
    """Return the sentence below the controls: how much is shown, and what the search found."""
    if missed_step is not None:
        known = index.step_range()
        recorded = f"steps {count(known[0])} to {count(known[1])} are" if known else "no step is"
        return f"Step {missed_step} is not in the timeline; {recorded} recorded."
    blocks = int((view.shapes.span < 0).sum())
    merged = f", drawn as {count(len(view.shapes))} shapes; zoom in to see each" if blocks else ""
    text = f"{count(view.spans)} spans in {duration(view.window.length_ns)}{merged}."
    return text + (f" The search finds {count(view.hits)} spans." if view.searched else "")


def note_of_all(view: View) -> str:
    """Return the sentence of a view of the whole timeline that has grown since it was drawn."""
    return f"{count(view.spans)} spans in {duration(view.window.length_ns)}; zoom in to see each."


def address(pathname: str | None, window: Window | None, more: dict[str, str]) -> dict[str, str]:
    """Return the address that restores a view; empty values of ``more`` are left out."""
    query: dict[str, str] = {}
    if window is not None:
        # A thousandth of the window is enough to restore it, and keeps addresses short.
        digits = min(6, max(0, 9 - len(str(int(window.length_ns)))))
        query = {
            "from": f"{window.begin_ns / NS_PER_AXIS:.{digits}f}",
            "to": f"{window.end_ns / NS_PER_AXIS:.{digits}f}",
        }
    return {
        "path": pathname or "/",
        "search": urlencode({**query, **{name: value for name, value in more.items() if value}}),
    }
