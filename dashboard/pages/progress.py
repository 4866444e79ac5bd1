"""The progress of reading a timeline, and the age of a page, as alerts and sentences."""

from __future__ import annotations

import time
from typing import Any

import dash_mantine_components as dmc

from ringtune.dashboard.data.live.analysis import Newest
from ringtune.dashboard.data.timeline.prepare import Preparing
from ringtune.dashboard.units import age, count


def progress(state: Preparing | None) -> list[Any]:
    """Return the progress of preparing a large timeline; nothing when there is none."""
    if state is None:
        return []
    words = f"{state.words} · {100 * state.share:.0f} %"
    bar = dmc.Progress(value=100 * state.share, striped=True, animated=True, size="lg", id="timeline-progress")
    text = "This timeline is large. It is prepared once; from then on it opens at once."
    lines = [dmc.Title("Preparing the timeline", order=4), dmc.Text(text, c="dimmed"), bar, dmc.Text(words, size="sm")]
    return [dmc.Card(dmc.Stack(lines, gap="sm"), withBorder=True, radius="md", p="xl")]


def as_of(words: str) -> list[Any]:
    """Return the age of a page of a running job in words; nothing when it is up to date."""
    return [dmc.Text(words, size="sm", c="dimmed", mb="xs", className="rt-as-of")] if words else []


def reading() -> list[Any]:
    """Return the placeholder of a page until the first answer about the timeline."""
    line = dmc.Group([dmc.Loader(size="sm"), dmc.Text("Reading the timeline …", c="dimmed")], gap="sm")
    return [dmc.Card(line, withBorder=True, radius="md", p="md")]


def age_words(found: Newest | None, rest: str = "the tests and tables below") -> str:
    """Return which steps the page of a running job covers; nothing where nothing runs. ``rest``: the outdated parts."""
    if found is None or found.last < 0:
        return ""
    words = f"The job is running; the page covers its steps {count(found.first)} to {count(found.last)}"
    if found.tested >= found.last:
        return f"{words}."
    ago = age(time.monotonic() - found.made_s)
    return f"{words}; {rest} are of those up to step {count(found.tested)}, {ago} ago."
